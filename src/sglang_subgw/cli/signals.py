"""The main thread's signals while it serves: put in a queue, handled where it waits, restored at the end."""

from __future__ import annotations

import queue
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final, Self

from ..system.waiting import SIGNAL_SECONDS

RESTART: Final = "SIGUSR1"
"""The event that asks for a restart of all shards, one by one."""
MORE: Final = "SIGTTIN"
"""The event that asks for one shard more."""
FEWER: Final = "SIGTTOU"
"""The event that asks for one shard less."""
_REQUESTS: Final = (RESTART, MORE, FEWER)
HANDLED: Final = tuple(signal.Signals[name] for name in ("SIGTERM", "SIGINT", *_REQUESTS))


class Interrupted(BaseException):
    """Raised in the main thread by a signal that arrives while the engine still starts."""

    def __init__(self, signum: int) -> None:
        super().__init__(signal.Signals(signum).name)
        self.signum = signum


class Signals:
    """A context that owns the signals of HANDLED; the command line only, a library installs none."""

    def __init__(self) -> None:
        self.events: queue.SimpleQueue[str] = queue.SimpleQueue()
        """Names of signals, and whatever else the main thread waits for."""
        self.count = 0
        """How many signals have come since the start was over."""
        self._waiting = False
        self._stop: Callable[[], None] | None = None
        self._held = 0
        self._before: dict[signal.Signals, Any] = {}

    def wait(self, timeout: float | None = None) -> str:
        """The next event, "" when there is none within `timeout` seconds."""
        while True:
            try:
                return self.events.get(timeout=SIGNAL_SECONDS if timeout is None else timeout)
            except queue.Empty:
                if timeout is not None:
                    return ""

    def queue_from_now(self) -> None:
        """The start is over: a signal no longer raises Interrupted."""
        self._waiting = True

    @contextmanager
    def held(self, stop: Callable[[], None] = lambda: None) -> Iterator[None]:
        """For a part of the start that must not break off just anywhere: a signal calls `stop`.

        Interrupted is raised when the part has ended, in place of whatever it then raises itself.
        """
        self._stop = stop
        try:
            yield
        finally:
            self._stop = None
            if self._held:
                raise Interrupted(self._held)

    def __enter__(self) -> Self:
        self._before = {signum: signal.signal(signum, self._on_signal) for signum in HANDLED}
        return self

    def __exit__(self, *exc: object) -> None:
        for signum, handler in self._before.items():
            signal.signal(signum, handler)

    def _on_signal(self, signum: int, frame: FrameType | None) -> None:
        name = signal.Signals(signum).name
        if name in _REQUESTS:
            if self._waiting:
                self.events.put(name)
            return
        if self._stop is not None:
            self._held = self._held or signum
            self._stop()
            return
        if not self._waiting:
            raise Interrupted(signum)
        self.count += 1
        self.events.put(name)
