"""The end of a shard, as those that run in it see it coming; for one event loop."""

from __future__ import annotations

import asyncio


class Draining:
    """Begins at most once in a shard's life."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        """What runs may finish, nothing new is to be taken."""
        self.awaited = asyncio.Event()
        """Somebody has begun to wait for it."""

    async def wait(self) -> None:
        """Until it has begun."""
        self.awaited.set()
        await self.begun.wait()
