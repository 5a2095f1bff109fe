"""The lock under which SGLang's own worker sends and awaits each of its requests, with a gate before it.

SGLang's writers wait for its readers, the requests. Held as a writer for others, the lock could not be taken by the
change that SGLang's own worker makes next; a gate before the readers leaves the lock itself alone.
"""

from __future__ import annotations

import asyncio
from typing import Any

from ...coordination.gate import Gate


class RequestLock:
    """From `start` to `close`, around a tokenizer manager's `model_update_lock`, an RWLock of SGLang's."""

    def __init__(self, lock: Any, gate: Gate) -> None:
        self._lock = lock
        self._gate = gate

    def start(self) -> None:
        """Let requests that come wait for the gate."""
        self._lock.acquire_reader = self._acquire_reader

    def close(self) -> None:
        """As it was before; what waits goes on."""
        self._gate.give_up()
        # The class's own method comes to light again.
        del self._lock.acquire_reader

    @property
    def running(self) -> int:
        """Requests that have passed the gate and not ended."""
        return int(self._lock._readers)

    async def emptied(self) -> None:
        """Until no request runs, also none that came before `start`."""
        async with self._lock._cond:
            await self._lock._cond.wait_for(lambda: self._lock._readers == 0)

    async def _acquire_reader(self) -> None:
        acquire = type(self._lock).acquire_reader
        while True:
            await self._gate.passed()
            await acquire(self._lock)
            if self._gate.is_open:
                return
            # Also when it is cancelled now: a reader that is never released keeps every writer waiting.
            await asyncio.shield(self._lock.release_reader())
