"""What a shard can't live without: the first of these parts that fails ends the shard, so that it starts again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from ..errors import ShardFailed


class Vital:
    """The vital parts of one shard, on the running loop; a shard that has lost one must not look alive."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._failure: asyncio.Future[None] = self._loop.create_future()

    def task(self, what: str, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a part that must not fail."""
        task = self._loop.create_task(coroutine, name=what)
        task.add_done_callback(self._on_done)
        return task

    def cancel(self, task: asyncio.Task[None]) -> None:
        """End a part that another takes the place of: that isn't its failure."""
        task.remove_done_callback(self._on_done)
        task.cancel()

    def guard(self, what: str, callback: Callable[[], None]) -> Callable[[], None]:
        """The callback, which must not raise: the loop would only log it."""

        def guarded() -> None:
            try:
                callback()
            except Exception as exc:
                self.fail(what, exc)

        return guarded

    def fail(self, what: str, exc: BaseException) -> None:
        """A part has failed; the first one is the reason."""
        if self._failure.done():
            return
        failure = ShardFailed(f"its {what} failed: {type(exc).__name__}: {exc}".removesuffix(": "))
        failure.__cause__ = exc
        self._failure.set_exception(failure)
        # It may come while nobody waits for it, for instance in a stop.
        self._failure.exception()

    async def hold(self, serving: asyncio.Task[None], may_end: Callable[[], bool]) -> None:
        """Until `serving` has ended; raises ShardFailed as soon as a part has failed, or ended before it `may_end`."""
        try:
            await asyncio.wait([serving, self._failure], return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError as exc:
            self.fail("main task", exc)
        if not self._failure.done() and not may_end():
            self.fail(serving.get_name(), RuntimeError("it ended without being told to"))
        if self._failure.done():
            self._failure.result()

    def _on_done(self, task: asyncio.Task[None]) -> None:
        if task.cancelled():
            self.fail(task.get_name(), asyncio.CancelledError("it was cancelled"))
        elif (exc := task.exception()) is not None:
            self.fail(task.get_name(), exc)
