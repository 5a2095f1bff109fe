"""What the engine's side knows of an sglang.Engine, without SGLang."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any


class Manager:
    """What EngineLoop knows of a tokenizer manager."""

    def __init__(self) -> None:
        self.event_loop: asyncio.AbstractEventLoop | None = None
        self.received: list[Any] = []
        self.handled = threading.Event()
        self.left = threading.Event()
        self.inbox: asyncio.Queue[Any] = asyncio.Queue()

    async def handle_loop(self) -> None:
        while True:
            item = await self.inbox.get()
            self.handled.set()
            if isinstance(item, Exception):
                raise item
            self.received.append(item)

    async def where(self) -> tuple[threading.Thread, asyncio.AbstractEventLoop]:
        return threading.current_thread(), asyncio.get_running_loop()

    async def fail(self) -> None:
        raise ValueError("as it is")

    async def meet(self, barrier: asyncio.Barrier) -> int:
        return await barrier.wait()

    async def count(self, fail_after: int = -1, pause: asyncio.Event | None = None) -> AsyncIterator[int]:
        try:
            for number in range(3):
                yield number
                if number == fail_after:
                    raise ValueError(f"after {number}")
                if pause is not None:
                    await pause.wait()
        finally:
            self.left.set()


class Engine:
    """A synchronous method of sglang.Engine is this: run_until_complete of something of the manager's."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop: Any = loop
        self.tokenizer_manager = Manager()

    def do(self, awaitable: Any) -> Any:
        return self.loop.run_until_complete(awaitable)
