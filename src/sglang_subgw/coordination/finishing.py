"""Changes of the engine that are finished once they are begun, though their caller gives up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Any


class Finishing:
    """What one worker has begun. Every worker must learn of a change that the engine makes, whoever still waits."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    async def within[T](
        self, section: AbstractAsyncContextManager[None], change: Callable[[], Coroutine[Any, Any, T]]
    ) -> T:
        """The result of a change made in a section; given up while it waits for the section, nothing is changed."""
        async with AsyncExitStack() as entered:
            await entered.enter_async_context(section)
            task = asyncio.get_running_loop().create_task(_whole(entered.pop_all(), change))
        self._tasks.add(task)
        task.add_done_callback(self._on_done)
        return await asyncio.shield(task)

    async def ended(self) -> None:
        """Until nothing is left of what was begun; for the end of the worker, which everything fails at."""
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _on_done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # Its caller may be gone, and nobody else asks.


async def _whole[T](section: AsyncExitStack, change: Callable[[], Coroutine[Any, Any, T]]) -> T:
    async with section:
        return await change()
