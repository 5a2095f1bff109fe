"""What blocks, for event loops: done by threads of its own and awaited, never in the loop's way."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any


async def outcome[T](shared: Future[T]) -> T:
    """Its result or exception; who is cancelled meanwhile leaves it to the others that wait for it."""
    await _until_done(shared)
    return shared.result()


async def in_thread[T](call: Callable[[], T]) -> T:
    """What `call` returns or raises; a cancellation does not wait for it."""
    return await outcome(_begin(call))


async def to_its_end[T](call: Callable[[], T]) -> T:
    """The same, but a cancellation comes through only when it has ended."""
    done = _begin(call)
    cancelled: asyncio.CancelledError | None = None
    while not done.done():
        try:
            await _until_done(done)
        except asyncio.CancelledError as exc:
            cancelled = exc
    if cancelled is not None:
        raise cancelled
    return done.result()


def _begin[T](call: Callable[[], T]) -> Future[T]:
    # Not the loop's own executor: its threads may all be busy, perhaps with waiting for this.
    done: Future[T] = Future()

    def run() -> None:
        try:
            done.set_result(call())
        except BaseException as exc:
            done.set_exception(exc)

    threading.Thread(target=run, name="subgw-blocking").start()
    return done


async def _until_done(shared: Future[Any]) -> None:
    own: Future[None] = Future()

    def tell(_: object) -> None:
        if own.set_running_or_notify_cancel():
            own.set_result(None)

    shared.add_done_callback(tell)
    await asyncio.wrap_future(own)
