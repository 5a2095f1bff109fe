"""Having the engine to oneself: no worker has a request in it, and none sends one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, Final

from .base import EngineCalls

_SECTION: Final = "weights"


class AloneCalls(EngineCalls):
    """What changes of weights and of memory have in common."""

    @property
    def released(self) -> set[str]:
        """The kinds of memory that the engine has given back: nothing can run, or be loaded, without them."""
        return set(self.coordination.state.get("released") or ())

    async def change_alone[T](self, change: Callable[[], Coroutine[Any, Any, T]], *, hold: bool = True) -> T:
        """The result of a change made alone, to its end; its caller may give up while it waits for that."""
        return await self.worker.finishing.within(self._alone(hold=hold), change)

    @asynccontextmanager
    async def _alone(self, *, hold: bool) -> AsyncIterator[None]:
        """Be the only worker that does this; with `hold`, wait for what runs, and let what comes later wait.

        A paused engine, where nothing ends by itself, is not waited for: that is SGLang's rule.
        """
        async with self.coordination.exclusive(_SECTION, after={"held": False}):
            if hold and not self.worker.gate.paused:
                await self.coordination.tell("idle", state={"held": True}, timeout=None)
            yield
