"""Routes about the engine's load: the same numbers whichever shard answers, as the engine counts them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from ...errors import RequestRejected
from ..core.exchange import Exchange
from ..services import Services

_PROMETHEUS: Final = b"text/plain; version=0.0.4; charset=utf-8"


class Loads:
    """The handlers; each method is one."""

    def __init__(self, services: Services) -> None:
        self._engine = services.engine
        self._contract = services.contract

    async def loads(self, exchange: Exchange) -> None:
        """SGLang's /v1/loads; of the query: `dp_rank`, `include` (sections, by commas) and `format=prometheus`."""
        query = exchange.query
        include = query.get("include")
        sections = [section.strip() for section in include.split(",")] if include else None
        loads = await self._engine.async_get_loads(sections, _rank(query.get("dp_rank")))
        facts = self._contract.loads
        assert facts is not None  # Else there were no loads.
        if query.get("format") == "prometheus":
            await exchange.respond(200, _metrics(loads, facts.includes), [(b"content-type", _PROMETHEUS)])
            return
        await exchange.json(
            {
                "timestamp": datetime.now(UTC).isoformat(),
                "version": self._contract.sglang_version,
                "accelerator": facts.accelerator,
                "num_accelerators": facts.accelerators_per_rank,
                "loads": loads,
            }
        )

    async def load(self, exchange: Exchange) -> None:
        """The older form, which SGLang's own router and others ask for."""
        now = time.perf_counter()
        await exchange.json(
            [
                {
                    "dp_rank": load["dp_rank"],
                    "num_reqs": load["num_running_reqs"] + load["num_waiting_reqs"],
                    "num_waiting_reqs": load["num_waiting_reqs"],
                    "num_tokens": load["num_total_tokens"],
                    "num_pending_tokens": load["num_total_tokens"] - load["num_used_tokens"],
                    "ts_tic": now,
                }
                for load in await self._engine.async_get_loads(["core"])
            ]
        )


def _rank(given: str | None) -> int | None:
    if given is None:
        return None
    try:
        return int(given)
    except ValueError:
        raise RequestRejected(f"'dp_rank' must be an integer, not {given!r}.", param="dp_rank") from None


def _metrics(loads: list[dict[str, Any]], prefixes: Mapping[str, str]) -> bytes:
    """SGLang's gauges, one sample for each rank."""
    samples: dict[str, list[tuple[int, float]]] = {}

    def add(name: str, rank: int, value: Any) -> None:
        if isinstance(value, int | float):
            samples.setdefault(f"sglang_{name}", []).append((rank, value))

    for load in loads:
        rank = load["dp_rank"]
        for name, value in load.items():
            if isinstance(value, dict):
                for inner, number in value.items():
                    add(f"{prefixes[name]}_{inner}", rank, number)
            elif name != "dp_rank":
                add(name, rank, value)
    lines = []
    for name, found in samples.items():
        lines.append(f"# TYPE {name} gauge")
        lines += [f'{name}{{dp_rank="{rank}"}} {value}' for rank, value in found]
    return ("\n".join(lines) + "\n").encode()
