"""What an application in a shard sees of the engine: one object, no wire, no mode."""

from __future__ import annotations

from collections.abc import Sequence

from ..contract import ShardState, Slot
from ..errors import RequestError
from ..worker.worker import TokenizerWorker
from .adapters import AdapterCalls
from .draining import Draining
from .embedding import EmbeddingCalls
from .generation import GenerationCalls
from .info import ShardInfo
from .kv_events import KvEventCalls
from .loads import LoadCalls
from .memory import MemoryCalls
from .pausing import PauseCalls
from .profiling import ProfileCalls
from .rpc import RpcCalls
from .scoring import ScoringCalls
from .sessions import SessionCalls
from .state import StateCalls
from .weights import WeightCalls


class ShardEngine(
    GenerationCalls,
    EmbeddingCalls,
    ScoringCalls,
    SessionCalls,
    PauseCalls,
    AdapterCalls,
    WeightCalls,
    MemoryCalls,
    ProfileCalls,
    RpcCalls,
    StateCalls,
    LoadCalls,
    KvEventCalls,
):
    """SGLang's Engine, as every shard has one: the same methods, parameters, defaults and results.

    Each method has two forms: `async_x` for the shard's own event loop, and `x`, which blocks, for every other thread.
    """

    def __init__(self, worker: TokenizerWorker, slots: Sequence[Slot], info: ShardInfo) -> None:
        super().__init__(worker)
        self.info = info
        """Which shard of which engine this is, to be published where services are found."""
        self.end = Draining()
        self._slots = slots

    @property
    def draining(self) -> bool:
        """The shard is stopping: what runs goes on, nothing new is to be taken."""
        return self.end.begun.is_set()

    async def until_draining(self) -> None:
        """Until the shard is stopping; by awaiting this a `serve` function also says that it serves from now on."""
        await self.end.wait()

    def fail_all(self, error: RequestError, *, for_good: bool = False) -> None:
        """End everything in flight with `error`; `for_good` (the engine is gone) also what still comes."""
        self.worker.fail_all(error, for_good=for_good)

    def shards(self) -> list[dict[str, int | str]]:
        """The index, state and counters of every shard there is now, in shard order."""
        return [
            {"index": index, **slot.snapshot()}
            for index, slot in enumerate(self._slots)
            if slot.state is not ShardState.EMPTY
        ]
