"""What `async_generate` gives for a stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable
from contextlib import suppress
from typing import Any, Self

from ..worker.call import Call


class OutputStream(AsyncIterator[dict[str, Any]]):
    """One call's outputs as they come; left early, closed or dropped unread, it is aborted in the engine."""

    def __init__(self, call: Call, loop: asyncio.AbstractEventLoop, incremental: bool) -> None:
        self._call = call
        self._loop = loop
        self._items = _items(call, incremental)

    def __aiter__(self) -> Self:
        return self

    def __anext__(self) -> Awaitable[dict[str, Any]]:
        return anext(self._items)

    async def aclose(self) -> None:
        """Abort what hasn't finished."""
        await self._items.aclose()
        # A generator that nobody began runs no code of its own at its end.
        self._call.cancel()

    def __del__(self) -> None:
        # In whichever thread a collection finds it.
        if not self._call.finished:
            with suppress(RuntimeError):  # The loop has ended, and with it its shard.
                self._loop.call_soon_threadsafe(self._call.cancel)


async def _items(call: Call, incremental: bool) -> AsyncGenerator[dict[str, Any]]:
    async with call:
        async for sample in call:
            out = sample.take() if incremental else sample.output()
            if not call.is_single:
                out["index"] = sample.index
            yield out
