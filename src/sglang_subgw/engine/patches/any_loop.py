"""An Engine's coroutine methods on every event loop, while its tokenizer manager's runs in a thread of its own."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable, Coroutine
from typing import Any

from ..engine_loop import EngineLoop


def open_to_any_loop(engine: Any, loop: EngineLoop) -> Callable[[], None]:
    """Let each `async_` method of an sglang.Engine be awaited wherever its caller is; returns what undoes that.

    SGLang's own work on the loop alone that the first of them was awaited on.
    """
    names = [name for name, method in inspect.getmembers(type(engine), inspect.iscoroutinefunction) if name[0] != "_"]
    for name in names:
        setattr(engine, name, _carried_over(getattr(engine, name), loop))

    def undo() -> None:
        for name in names:
            # The class's own comes to light again.
            delattr(engine, name)

    return undo


def _carried_over(
    stock: Callable[..., Coroutine[Any, Any, Any]], loop: EngineLoop
) -> Callable[..., Coroutine[Any, Any, Any]]:
    @functools.wraps(stock)
    async def method(*args: Any, **kwargs: Any) -> Any:
        if asyncio.get_running_loop() is loop.loop:
            return await stock(*args, **kwargs)
        result = await loop.call(stock(*args, **kwargs))
        return loop.stream(result) if inspect.isasyncgen(result) else result

    return method
