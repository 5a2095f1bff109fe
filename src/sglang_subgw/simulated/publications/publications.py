"""What a simulated engine publishes beside its answers: load snapshots always, KV cache events if asked."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

from ...contract import EngineContract
from ...kv_events.relay import KvEventRelay
from ..generation import SimulatedGeneration
from ..scheduler import Scheduler
from .kv_publisher import KvPublisher
from .loads import LoadPublisher


class Publications:
    """From `start` to `close`; `look` is for the engine's thread."""

    def __init__(self, contract: EngineContract, scheduler: Scheduler, kv_events: Mapping[str, Any] | None) -> None:
        self._scheduler = scheduler
        self._ends = ExitStack()
        assert contract.loads is not None
        self.loads = LoadPublisher(contract.loads, contract.features.num_dp_ranks)
        self.kv_events: KvPublisher | None = None
        self._relay: KvEventRelay | None = None
        if kv_events is not None:
            buffer_steps = kv_events.get("buffer_steps", 10_000)
            self.kv_events = KvPublisher(contract.kv_events, buffer_steps=buffer_steps)
            self._relay = KvEventRelay(contract.kv_events)
            scheduler.on_cached = self._on_cached
            scheduler.on_flushed = self.kv_events.cleared

    def start(self) -> None:
        """Publish from now on, and pass KV events on."""
        for part in (self.loads, self.kv_events, self._relay):
            if part is not None:
                self._ends.callback(part.close)
                part.start()
        self.look(0.0)

    def look(self, now: float) -> None:
        """Write down how the scheduler is."""
        self.loads.look(self._scheduler, now)

    def close(self) -> None:
        """Leave no thread and no file. Safe to call twice."""
        self._ends.close()

    def _on_cached(self, generation: SimulatedGeneration) -> None:
        assert self.kv_events is not None
        self.kv_events.stored(generation.prompt, generation.request.routed_dp_rank or 0)
