"""Health checks in the engine: requests that nobody waits for, and that a change of its memory must not meet."""

from __future__ import annotations

import asyncio

from .rids import HEALTH_CHECK


class HealthChecks:
    """Those of one worker, by rid, until the engine has answered or dropped them."""

    def __init__(self) -> None:
        self._open: dict[str, None] = {}
        self._ended = asyncio.Event()

    def begin(self, rid: str) -> None:
        """It is about to be sent."""
        self._open[rid] = None

    def end(self, rid: str) -> bool:
        """The engine has answered it, or ended it; False for a rid that is no health check's."""
        if not rid.startswith(HEALTH_CHECK):
            return False
        if self._open.pop(rid, "") is None and not self._open:
            self._wake()
        return True

    def end_one(self) -> None:
        """A busy engine has dropped one, and doesn't say which."""
        if self._open:
            self.end(next(iter(self._open)))

    def end_all(self) -> None:
        """The engine is gone."""
        self._open.clear()
        self._wake()

    async def ended(self) -> None:
        """Until none is in the engine."""
        while self._open:
            await self._ended.wait()

    def _wake(self) -> None:
        self._ended.set()
        self._ended = asyncio.Event()
