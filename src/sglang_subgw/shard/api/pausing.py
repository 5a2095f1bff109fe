"""Pausing and continuing the engine, for all of its workers at once."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

from ...errors import EngineUnavailable, RequestRejected
from .base import EngineCalls

_SECTION: Final = "pause"
_MODES: Final = ("abort", "retract", "in_place")
_ABORT_AGAIN_SECONDS: Final = 1.0


class PauseCalls(EngineCalls):
    """SGLang's TokenizerManager.pause_generation and continue_generation."""

    async def async_pause_generation(self, mode: str = "abort") -> None:
        """Return when no worker sends anything new and, with "abort", when nothing runs any longer.

        Modes: "abort" ends all requests, "in_place" keeps them and their cache, "retract" puts them back in the queue.
        Raises RequestRejected for another mode, EngineUnavailable with the names of workers that did not pause.
        """
        if mode not in _MODES:
            raise RequestRejected(f"mode must be one of {', '.join(_MODES)}, not {mode!r}.", param="mode")
        async with self.coordination.exclusive(_SECTION):
            # The router tells SGLang's own workers; shards answer for themselves that they have paused.
            self.worker.send("PauseGenerationReqInput", {"mode": mode})
            retracted = mode == "retract" or bool(self.coordination.state.get("retracted"))
            await self.coordination.tell("apply", state={"paused": True, "retracted": retracted})
            if mode == "abort":
                await self._abort_until_idle()
            await self._until_done()

    def pause_generation(self, mode: str = "abort") -> None:
        """`async_pause_generation` for other threads than the loop's."""
        self._blocking(self.async_pause_generation(mode))

    async def async_continue_generation(self, torch_empty_cache: bool = True) -> None:
        """Let every worker send again; one that never paused is no error.

        Raises RequestRejected while requests were put back in the queue of an engine whose memory is released.
        """
        state = self.coordination.state
        if state.get("released") and state.get("retracted"):
            raise RequestRejected(f"First resume the memory that is released: {', '.join(state['released'])}.")
        async with self.coordination.exclusive(_SECTION):
            self.worker.send("ContinueGenerationReqInput", {"torch_empty_cache": torch_empty_cache})
            await self.coordination.tell("apply", state={"paused": False, "retracted": False})
            await self._until_done()

    def continue_generation(self, torch_empty_cache: bool = True) -> None:
        """`async_continue_generation` for other threads than the loop's."""
        self._blocking(self.async_continue_generation(torch_empty_cache))

    async def _until_done(self) -> None:
        """Until the engine has done what this worker has sent, which it doesn't answer.

        The router reads its workers in turns: what another one sends later could be done before it.
        """
        await self.control.ask("GetInternalStateReq", {}, "GetInternalStateReqOutput", None)

    async def _abort_until_idle(self) -> None:
        # Again and again, as SGLang does: what was on its way when the first abort came runs on.
        idle = asyncio.ensure_future(self.coordination.tell("idle", timeout=None))
        try:
            while not idle.done():
                self.worker.abort_all()
                await asyncio.wait([idle], timeout=_ABORT_AGAIN_SECONDS)
            await idle
        finally:
            idle.cancel()
            with suppress(asyncio.CancelledError, EngineUnavailable):
                await idle
