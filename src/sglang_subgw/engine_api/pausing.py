"""Pausing and continuing the engine, for all of its workers at once."""

from __future__ import annotations

from typing import Final

from ..coordination.quiesce import PAUSE_SECTION, aborted
from ..errors import RequestRejected
from .base import EngineCalls
from .blocking import blocking

_MODES: Final = ("abort", "retract", "in_place")


class PauseCalls(EngineCalls):
    """SGLang's TokenizerManager.pause_generation and continue_generation."""

    async def async_pause_generation(self, mode: str = "abort") -> None:
        """Return when no worker sends anything new and, with "abort", when nothing runs any longer.

        Modes: "abort" ends all requests, "in_place" keeps them and their cache, "retract" puts them back in the queue.
        Raises RequestRejected for another mode, EngineUnavailable with the names of workers that did not pause.
        """
        if mode not in _MODES:
            raise RequestRejected(f"mode must be one of {', '.join(_MODES)}, not {mode!r}.", param="mode")
        async with self.coordination.exclusive(PAUSE_SECTION):
            # The router tells SGLang's own workers; shards answer for themselves that they have paused.
            self.worker.send("PauseGenerationReqInput", {"mode": mode})
            retracted = mode == "retract" or bool(self.coordination.state.get("retracted"))
            await self.coordination.tell("apply", state={"paused": True, "retracted": retracted})
            if mode == "abort":
                await aborted(self.coordination, self.worker.abort_all)
            await self._until_done()

    pause_generation = blocking(async_pause_generation)

    async def async_continue_generation(self, torch_empty_cache: bool = True) -> None:
        """Let every worker send again; one that never paused is no error.

        Raises RequestRejected while requests were put back in the queue of an engine whose memory is released.
        """
        async with self.coordination.exclusive(PAUSE_SECTION):
            state = self.coordination.state
            if state.get("released") and state.get("retracted"):
                raise RequestRejected(f"First resume the memory that is released: {', '.join(state['released'])}.")
            self.worker.send("ContinueGenerationReqInput", {"torch_empty_cache": torch_empty_cache})
            await self.coordination.tell("apply", state={"paused": False, "retracted": False})
            await self._until_done()

    continue_generation = blocking(async_continue_generation)

    async def _until_done(self) -> None:
        """Until the engine has done what this worker has sent, which it doesn't answer.

        The router reads its workers in turns: what another one sends later could be done before it.
        """
        await self.control.ask("GetInternalStateReq", {}, "GetInternalStateReqOutput", None)
