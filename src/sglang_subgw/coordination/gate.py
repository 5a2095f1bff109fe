"""Whether this worker may send requests: not while the engine is paused, nor while its weights or memory change."""

from __future__ import annotations

import asyncio


class Gate:
    """Open unless paused or held."""

    def __init__(self) -> None:
        self.held = False
        self._given_up = False
        self._open = asyncio.Event()
        self._open.set()
        self._paused = asyncio.Event()

    @property
    def paused(self) -> bool:
        """Whether the engine is."""
        return self._paused.is_set()

    @property
    def is_open(self) -> bool:
        """Whether `passed` would return at once."""
        return self._open.is_set()

    def set(self, *, paused: bool | None = None, held: bool | None = None) -> None:
        """Change what is not None."""
        self.held = self.held if held is None else held
        _apply(self._paused, self.paused if paused is None else paused)
        _apply(self._open, self._given_up or not (self.paused or self.held))

    async def passed(self) -> None:
        """Until it is open: when this returns, and not only once before."""
        while not self._open.is_set():
            await self._open.wait()

    async def pausing(self) -> None:
        """Until it has been paused, if only for a moment."""
        await self._paused.wait()

    def give_up(self) -> None:
        """What waits learns that nothing will come of it; for the end of the worker."""
        self._given_up = True
        self._open.set()


def _apply(event: asyncio.Event, value: bool) -> None:
    if value:
        event.set()
    else:
        event.clear()
