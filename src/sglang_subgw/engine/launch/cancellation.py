"""Breaking off a start that is under way."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ...errors import StartStopped


class Cancellation:
    """Cancelled once and for all, by any thread or a signal's handler; the thread that starts something finds out."""

    def __init__(self) -> None:
        # A handler can come upon the thread that holds it.
        self._lock = threading.RLock()
        self._cancelled = False
        self._actions: list[Callable[[], object]] = []

    def cancel(self) -> None:
        """Let what is under way fail soon, and what begins later at once."""
        with self._lock:
            if self._cancelled:
                return
            self._cancelled = True
            actions = list(self._actions)
        for action in actions:
            action()

    def check(self) -> None:
        """Raise StartStopped if it is cancelled."""
        if self._cancelled:
            raise StartStopped("The start was stopped.")

    @contextmanager
    def by(self, action: Callable[[], object]) -> Iterator[None]:
        """For a part of the start that `action`, in another thread, breaks off: it then fails as `check` does."""
        with self._lock:
            self.check()
            self._actions.append(action)
        try:
            yield
        except Exception:
            self.check()
            raise
        finally:
            with self._lock:
                self._actions.remove(action)
        self.check()
