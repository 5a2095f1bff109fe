"""Carries a method out where it belongs: on the tokenizer manager's loop, or in a thread of its own."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import aclosing, contextmanager, suppress
from functools import partial
from typing import Any, Final

from starlette.exceptions import HTTPException

from ...errors import RequestError, RequestRejected
from ..engine_loop import EngineLoop
from .resolve import Method

_END: Final = object()


class Executor:
    """Calls methods from an event loop that is not the engine's."""

    def __init__(self, loop: EngineLoop) -> None:
        self._loop = loop

    async def call(self, method: Method, arguments: dict[str, Any]) -> Any:
        """What the method returns; an asynchronous generator of what it yields, if it does.

        Raises RequestError for what the method says of its arguments, and what else it raises as it is.
        """
        function = partial(method.call, **arguments)
        with _complaints():
            if method.on_loop:
                result = await self._loop.call(_called(function))
            else:
                result = await in_thread(function)
                if inspect.isawaitable(result):
                    result = await self._loop.call(result)
        if isinstance(result, AsyncIterator):
            return _items(self._loop.stream(result))
        if isinstance(result, Iterator):
            return _items(_from_thread(result))
        return result


async def in_thread(function: Callable[[], Any]) -> Any:
    """What the function returns, called in a thread of its own.

    Nobody waits for a daemon thread: one that hangs, which those of an executor can't be left to, keeps no process.
    """
    here = asyncio.get_running_loop()
    result: asyncio.Future[Any] = here.create_future()

    def deliver(value: Any, error: BaseException | None) -> None:
        if result.done():
            return
        if error is None:
            result.set_result(value)
        else:
            result.set_exception(error)

    def run() -> None:
        value, error = None, None
        try:
            value = function()
        except BaseException as exc:
            error = exc
        with suppress(RuntimeError):  # The loop has been closed: nobody waits any longer.
            here.call_soon_threadsafe(deliver, value, error)

    threading.Thread(target=run, name="subgw-admin-call", daemon=True).start()
    return await result


async def _items(items: AsyncGenerator[Any]) -> AsyncGenerator[Any]:
    async with aclosing(items):
        with _complaints():
            async for item in items:
                yield item


async def _called(function: Callable[[], Any]) -> Any:
    result = function()
    return await result if inspect.isawaitable(result) else result


async def _from_thread(items: Iterator[Any]) -> AsyncGenerator[Any]:
    while (item := await in_thread(partial(next, items, _END))) is not _END:
        yield item


@contextmanager
def _complaints() -> Iterator[None]:
    """What a method says of its arguments becomes the client's error."""
    try:
        yield
    except HTTPException as exc:
        raise RequestError(exc.detail, status=exc.status_code) from exc
    except (ValueError, TypeError, AssertionError) as exc:
        raise RequestRejected(str(exc) or type(exc).__name__) from exc
