"""An engine without requests, for whoever changes what all of its workers use: a shard, or SGLang's own worker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Final

from .client import Coordination
from .gate import Gate

PAUSE_SECTION: Final = "pause"
_ABORT_AGAIN_SECONDS: Final = 1.0


@asynccontextmanager
async def quiet(coordination: Coordination, gate: Gate, abort: Callable[[], None] | None = None) -> AsyncIterator[None]:
    """The section of weights, in which no worker sends anything, and nothing runs but what is paused.

    A paused engine, where nothing ends by itself, is not waited for, and stays paused: that is SGLang's rule. `abort`
    ends what runs. Raises EngineUnavailable with the names of workers that go on sending.
    """
    async with weights_section(coordination):
        await coordination.tell("apply", state={"held": True})
        if abort is not None:
            abort()
        while True:
            if gate.paused:
                async with coordination.exclusive(PAUSE_SECTION):
                    # It may have been continued before this worker's turn came.
                    if gate.paused:
                        yield
                        return
            elif await _idle_or_paused(coordination, gate):
                yield
                return


def weights_section(coordination: Coordination) -> AbstractAsyncContextManager[None]:
    """Where one worker at a time changes weights or memory; whatever ends it, nobody is held any longer."""
    return coordination.exclusive("weights", after={"held": False})


async def aborted(coordination: Coordination, abort: Callable[[], None]) -> None:
    """Until no worker has a request in the engine; `abort` ends them."""
    # Again and again, as SGLang does: what was on its way when the first abort came runs on.
    async with _running(coordination.tell("idle", timeout=None)) as idle:
        while not idle.done():
            abort()
            await asyncio.wait([idle], timeout=_ABORT_AGAIN_SECONDS)
        await idle


async def _idle_or_paused(coordination: Coordination, gate: Gate) -> bool:
    """Whether nothing runs any longer; False when it was paused first."""
    async with _running(coordination.tell("idle", timeout=None)) as idle, _running(gate.pausing()) as pausing:
        await asyncio.wait([idle, pausing], return_when=asyncio.FIRST_COMPLETED)
        if idle.done():
            await idle
            return True
        return False


@asynccontextmanager
async def _running[T](coroutine: Coroutine[Any, Any, T]) -> AsyncIterator[asyncio.Task[T]]:
    """A task that does not outlive the block."""
    task = asyncio.get_running_loop().create_task(coroutine)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
