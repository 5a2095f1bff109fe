"""An engine that another process owns: what a gateway needs of it, and how its end is noticed."""

from __future__ import annotations

import dataclasses
import os
import select
import threading
from collections.abc import Callable
from typing import Final, Self

from ...contract import EngineContract, GatewayState, Segment
from ...errors import ContractError
from .attachable import open_segment

_POLL_SECONDS: Final = 0.25
"""How often the owner's state is looked at; its end is noticed at once where the kernel has pidfds."""


class AttachedEngine:
    """Watches the owner of an engine from `attach` to `close`; the engine goes on without it."""

    def __init__(self, segment: Segment) -> None:
        self._segment = segment
        self.owner_pid = segment.owner_pid
        self.contract: EngineContract = dataclasses.replace(segment.contract(), attached_to=segment.name)
        self._lock = threading.Lock()
        self._death_callbacks: list[Callable[[str], object]] = []
        self._stopping_callbacks: list[Callable[[], object]] = []
        self._death = ""
        self._stopping = False
        self._wake_out, self._wake_in = os.pipe()
        self._pidfd = _pidfd(self.owner_pid)
        self._thread = threading.Thread(target=self._watch, name="subgw-attached")

    @classmethod
    def attach(cls, target: str) -> Self:
        """Find the engine by its owner's pid or its segment's name; raises ContractError with what there is."""
        segment = open_segment(target)
        try:
            engine = cls(segment)
        except BaseException:
            segment.close()
            raise
        engine._thread.start()
        return engine

    def on_death(self, callback: Callable[[str], object]) -> None:
        """Call back with the reason, once and from a thread, when the engine or its owner ends."""
        with self._lock:
            self._death_callbacks.append(callback)
            reason = self._death
        if reason:
            callback(reason)

    def on_stopping(self, callback: Callable[[], object]) -> None:
        """Call back, once and from a thread, when the owner means to end it and waits for its gateways."""
        with self._lock:
            self._stopping_callbacks.append(callback)
            stopping = self._stopping
        if stopping:
            callback()

    def close(self) -> None:
        """Stop watching. Safe to call twice."""
        if self._wake_in < 0:
            return
        os.close(self._wake_in)
        self._wake_in = -1
        self._thread.join()
        os.close(self._wake_out)
        if self._pidfd >= 0:
            os.close(self._pidfd)
        self._segment.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _watch(self) -> None:
        poller = select.poll()
        poller.register(self._wake_out, select.POLLIN)
        if self._pidfd >= 0:
            poller.register(self._pidfd, select.POLLIN)
        while True:
            events = dict(poller.poll(_POLL_SECONDS * 1000))
            if self._wake_out in events:
                return
            gone = self._pidfd in events or not self._segment.owner_lives
            # Only then: what the owner said last, before it ended, stays in the memory that this process maps.
            if reason := self._reason(gone):
                self._report_death(reason)
                return
            if self._segment.state is GatewayState.DRAINING and not self._stopping:
                self._report_stopping()

    def _reason(self, gone: bool) -> str:
        owner = f"the process {self.owner_pid} that owns the engine"
        match self._segment.state:
            case GatewayState.FAILED:
                return self._segment.reason or f"{owner} failed"
            case GatewayState.DRAINING if gone:
                return f"{owner} was stopped"
        return f"{owner} ended" if gone else ""

    def _report_death(self, reason: str) -> None:
        with self._lock:
            self._death = reason
            callbacks = list(self._death_callbacks)
        for callback in callbacks:
            callback(reason)

    def _report_stopping(self) -> None:
        with self._lock:
            self._stopping = True
            callbacks = list(self._stopping_callbacks)
        for callback in callbacks:
            callback()


def _pidfd(pid: int) -> int:
    """A descriptor that is readable once the process has ended, -1 where the kernel has none to give."""
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        raise ContractError(f"The process {pid} that owns the engine has ended.") from None
    except (OSError, AttributeError):
        return -1
