"""Having the engine to oneself: no worker has a request in it, and none sends one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from ..quiet import WEIGHTS_SECTION, quiet
from ..released import released
from .base import EngineCalls


class AloneCalls(EngineCalls):
    """What changes of weights and of memory have in common."""

    @property
    def released(self) -> set[str]:
        """The kinds of memory that the engine has given back: nothing can run, or be loaded, without them."""
        return released(self.coordination.state)

    async def change_alone[T](
        self, change: Callable[[], Coroutine[Any, Any, T]], *, hold: bool = True, abort: bool = False
    ) -> T:
        """The result of a change made alone, to its end; its caller may give up while it waits for that.

        With `abort` what runs is ended and not waited for.
        """
        return await self.worker.finishing.within(self._alone(hold=hold, abort=abort), change)

    @asynccontextmanager
    async def _alone(self, *, hold: bool, abort: bool) -> AsyncIterator[None]:
        """Be the only worker that does this; with `hold`, wait for what runs, and let what comes later wait."""
        async with self.coordination.exclusive(WEIGHTS_SECTION, after={"held": False}):
            if not hold:
                yield
                return
            async with quiet(self.coordination, self.worker.gate, self.worker.abort_all if abort else None):
                yield
