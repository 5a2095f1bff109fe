"""An engine without a gateway of its own, published for gateways in other processes to attach to."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol, Self

from ...contract import EngineContract, GatewayState, Segment
from .seats import SeatSweeper


class _Engine(Protocol):
    @property
    def contract(self) -> EngineContract: ...

    def on_death(self, callback: Callable[[str], object]) -> None: ...


class PublishedEngine:
    """A context in which the engine's segment is there, and what killed gateways left running is ended."""

    def __init__(self, engine: _Engine) -> None:
        self.failure = ""
        """Why the engine ended by itself, "" while it has not."""
        self._engine = engine
        self._segment: Segment | None = None
        self._lock = threading.Lock()

    @property
    def name(self) -> str:
        """The segment's name."""
        assert self._segment is not None
        return self._segment.name

    def draining(self) -> None:
        """Tell the gateways that the engine is about to be stopped, and let nobody new attach."""
        self._set_state(GatewayState.DRAINING)

    def __enter__(self) -> Self:
        contract = self._engine.contract
        self._segment = Segment.publish(contract, slots=0)
        self._set_state(GatewayState.READY)
        self._sweeper = SeatSweeper(contract)
        self._sweeper.start()
        self._engine.on_death(self._on_death)
        return self

    def __exit__(self, *exc: object) -> None:
        self._sweeper.stop()
        with self._lock:
            assert self._segment is not None
            self._segment.close()
            self._segment = None

    def _on_death(self, reason: str) -> None:
        self.failure = self.failure or reason
        self._set_state(GatewayState.FAILED, reason)

    def _set_state(self, state: GatewayState, reason: str = "") -> None:
        with self._lock:
            if self._segment is not None and self._segment.state is not GatewayState.FAILED:
                self._segment.set_state(state, reason)
