"""Whether this worker may send requests: not while the engine is paused, nor while its weights change."""

from __future__ import annotations

import asyncio


class Gate:
    """Open unless paused or held."""

    def __init__(self) -> None:
        self.paused = False
        self.held = False
        self._open = asyncio.Event()
        self._open.set()

    def set(self, *, paused: bool | None = None, held: bool | None = None) -> None:
        """Change what is not None."""
        self.paused = self.paused if paused is None else paused
        self.held = self.held if held is None else held
        if self.paused or self.held:
            self._open.clear()
        else:
            self._open.set()

    async def passed(self) -> None:
        """Until it is open."""
        await self._open.wait()

    def give_up(self) -> None:
        """What waits learns that nothing will come of it; for the end of the worker."""
        self._open.set()
