"""Having the engine to oneself: no worker has a request in it, and none sends one."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from ..coordination.quiesce import quiet, weights_section
from ..coordination.released_memory import released
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

        With `hold` it waits for what runs, and what comes later waits; with `abort` what runs is ended for it.
        """
        worker = self.worker
        section = quiet(self.coordination, worker.gate, worker.abort_all if abort else None)
        return await worker.finishing.within(section if hold else weights_section(self.coordination), change)
