"""Health checks in the engine: requests that nobody waits for, and that a change of its memory must not meet."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from ..contract.rids import HEALTH_CHECK

log = logging.getLogger("sglang_subgw.shard")

_LOST_SECONDS: Final = 60.0
"""A check that an engine without other requests hasn't answered within these is taken for lost."""


class HealthChecks:
    """How many of one worker's the engine has; `prefix` begins the worker's own rids.

    Counted: each ends by one message, but a busy engine doesn't say which check it has dropped, and says so on a
    shorter way than the answers of those before it.
    """

    def __init__(self, prefix: str) -> None:
        self.open = 0
        self._own = f"{HEALTH_CHECK}_{prefix}"
        self._ended = asyncio.Event()

    def begin(self) -> None:
        """One more is about to be sent."""
        self.open += 1
        self._ended.clear()

    def end(self, rid: str) -> bool:
        """The engine has answered it, or aborted it; False for a rid that is no health check's."""
        if rid.startswith(self._own):
            self.end_one()
        return rid.startswith(HEALTH_CHECK)

    def end_one(self) -> None:
        """The engine has dropped one, being busy."""
        self.open = max(self.open - 1, 0)
        if not self.open:
            self._ended.set()

    def end_all(self) -> None:
        """The engine is gone."""
        self.open = 0
        self._ended.set()

    async def ended(self, timeout: float = _LOST_SECONDS) -> None:
        """Until none is in the engine, or they are lost."""
        try:
            async with asyncio.timeout(timeout):
                while self.open:
                    await self._ended.wait()
        except TimeoutError:
            log.warning("%d health checks have had no answer within %g s: not waited for.", self.open, timeout)
            self.end_all()
