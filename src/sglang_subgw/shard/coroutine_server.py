"""A server that is not HTTP in a shard: the user's coroutine function, started, asked to end, and cut off."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from ..engine_api.engine import ShardEngine
from ..engine_api.info import ShardInfo
from .user_code import Serve

log = logging.getLogger("sglang_subgw.shard")

_LAST_WORDS_SECONDS: Final = 0.5
"""For a function whose requests were just ended: to tell its clients so."""


class CoroutineServer:
    """Has the calls of ShardServer that don't need connections; the function opens what it serves by itself."""

    def __init__(self, function: Serve, name: str, engine: ShardEngine, info: ShardInfo) -> None:
        self._function = function
        self._name = name
        self._engine = engine
        self._info = info
        self._task: asyncio.Task[None] | None = None
        self._overdue = False
        self._cut_off: asyncio.TimerHandle | None = None

    async def serve(self) -> None:
        """Run the function to its end; raises what it raises, and RuntimeError when it returns unasked."""
        self._task = asyncio.create_task(self._function(self._engine, self._info), name=self._name)
        try:
            await self._task
        except asyncio.CancelledError:
            if self._overdue:
                log.warning("%s did not return when it was to, and was cancelled.", self._name)
                return
            serving = asyncio.current_task()
            if serving is None or serving.cancelling():
                raise
            raise RuntimeError(f"{self._name} cancelled itself") from None
        if not self._engine.draining:
            raise RuntimeError(f"{self._name} returned by itself; until_draining() tells when to")

    async def wait_started(self, serving: asyncio.Task[None]) -> None:
        """Until the function awaits `until_draining()`; raises what ended `serving` before that."""
        awaited = asyncio.create_task(self._engine.end.awaited.wait())
        try:
            await asyncio.wait([serving, awaited], return_when=asyncio.FIRST_COMPLETED)
        finally:
            awaited.cancel()
        if serving.done():
            serving.result()

    def give_up_start(self) -> None:
        """The start is stopped on purpose."""
        if self._task is not None:
            self._task.cancel()

    async def retire(self, give_away: Callable[[int], bool], timeout: float) -> None:
        """As `drain`, and wait for the function's end; it has no connections that could be given away."""
        assert self._task is not None  # only what has started is told to end
        self._engine.end.begun.set()
        await self.drain(timeout)
        await asyncio.wait([self._task])

    async def drain(self, timeout: float) -> None:
        """Cancel the function soon after `timeout` seconds, if it has not returned until then."""
        if self._cut_off is not None:
            self._cut_off.cancel()
        self._cut_off = asyncio.get_running_loop().call_later(timeout + _LAST_WORDS_SECONDS, self._cancel)

    def _cancel(self) -> None:
        assert self._task is not None
        self._overdue = True
        self._task.cancel()
