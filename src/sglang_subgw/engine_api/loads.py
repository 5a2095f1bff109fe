"""How busy the engine is: what its schedulers last said, without asking them."""

from __future__ import annotations

from typing import Any

from ..contract import LoadFacts
from ..errors import EngineUnavailable, RequestRejected
from ..worker.load_snapshots import LoadSnapshots
from .base import EngineCalls
from .blocking import blocking


class LoadCalls(EngineCalls):
    """As of SGLang's tokenizer manager, as plain dicts. They are the engine's: every shard gives the same."""

    async def async_get_loads(
        self, include: list[str] | None = None, dp_rank: int | None = None
    ) -> list[dict[str, Any]]:
        """The latest load snapshot of each data-parallel rank, or of one; an empty list for a rank that there isn't.

        `include` names the sections (core, memory, spec, lora, disagg, queues, all); None is all. Raises
        RequestRejected for one that there isn't, and EngineUnavailable when the snapshots can't be read.
        """
        facts, ranks = self.contract.loads, max(self.contract.features.num_dp_ranks, 1)
        if facts is None:
            raise EngineUnavailable(f"SGLang {self.contract.sglang_version} keeps no load snapshots.", status=501)
        left_out = _left_out(facts, include)
        if dp_rank is not None and type(dp_rank) is not int:
            raise RequestRejected(f"dp_rank must be an integer, not {dp_rank!r}.", param="dp_rank")
        if dp_rank is not None and not 0 <= dp_rank < ranks:
            return []
        loads = await LoadSnapshots(facts, ranks).read(dp_rank)
        return [{name: value for name, value in load.items() if name not in left_out} for load in loads]

    get_loads = blocking(async_get_loads)


def _left_out(facts: LoadFacts, include: list[str] | None) -> set[str]:
    """The sections that nobody asked for."""
    if isinstance(include, str):
        raise RequestRejected(f"include must be a list of sections, not {include!r}.", param="include")
    if include is None or "all" in include:
        return set()
    valid = {"all", "core", *facts.includes.values()}
    if wrong := set(include) - valid:
        raise RequestRejected(f"Invalid include sections: {wrong}. Valid options: {sorted(valid)}", param="include")
    return {field for field, name in facts.includes.items() if name not in include}
