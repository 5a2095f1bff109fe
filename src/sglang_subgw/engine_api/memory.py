"""The engine's memory: cache, weights and collector."""

from __future__ import annotations

import gc

from ..coordination.released_memory import kinds, release, resume
from ..errors import RequestRejected
from ..wire.outgoing.freezing import freeze_fields
from ..worker.answers.outputs import FlushCacheReqOutput
from ..worker.worker import TokenizerWorker
from .alone import AloneCalls
from .blocking import blocking


class MemoryCalls(AloneCalls):
    """SGLang's Engine.flush_cache, release_memory_occupation, resume_memory_occupation and freeze_gc."""

    def __init__(self, worker: TokenizerWorker) -> None:
        super().__init__(worker)
        self.coordination.handlers["freeze gc"] = lambda body: gc.freeze()
        self.coordination.handlers["active"] = lambda body: worker.occupying

    async def async_flush_cache(self, timeout_s: float | None = None) -> FlushCacheReqOutput:
        """Empty the prefix cache, waiting up to `timeout_s` seconds until the engine is idle; it may refuse."""
        seconds = None if timeout_s is None else float(timeout_s)
        answers = await self.control.ask(
            "FlushCacheReqInput", {"timeout_s": seconds}, "FlushCacheReqOutput", (seconds or 0.0) + 30.0
        )
        return FlushCacheReqOutput(bool(answers[0].get("success")), str(answers[0].get("message") or ""))

    flush_cache = blocking(async_flush_cache)

    async def async_release_memory_occupation(self, tags: list[str] | None = None) -> None:
        """Give the accelerator's memory back, or that of `tags` (kv_cache, weights, cuda_graph).

        It waits for what runs; what comes later waits until all is resumed. Raises RequestRejected for what is released
        already, and while requests are paused in place.
        """
        self._check_device()
        wanted = kinds(tags)

        async def ask() -> None:
            fields = {"tags": tags}
            await self.control.ask("ReleaseMemoryOccupationReqInput", fields, "ReleaseMemoryOccupationReqOutput", None)

        async def change() -> None:
            if twice := wanted & self.released:
                raise RequestRejected(f"It is released already: {', '.join(sorted(twice))}.", param="tags")
            await release(self.coordination, wanted, ask)

        await self.change_alone(change)

    release_memory_occupation = blocking(async_release_memory_occupation)

    async def async_resume_memory_occupation(self, tags: list[str] | None = None) -> None:
        """Take it again; raises RequestRejected for what is not released."""
        self._check_device()
        wanted = kinds(tags)

        async def ask() -> None:
            fields = {"tags": tags}
            await self.control.ask("ResumeMemoryOccupationReqInput", fields, "ResumeMemoryOccupationReqOutput", None)

        async def change() -> None:
            if there := wanted - self.released:
                raise RequestRejected(f"It is not released: {', '.join(sorted(there))}.", param="tags")
            await resume(self.coordination, wanted, ask)

        await self.change_alone(change, hold=False)

    resume_memory_occupation = blocking(async_resume_memory_occupation)

    async def async_freeze_gc(self) -> None:
        """Let the engine's processes and every worker take what they have now out of garbage collection."""
        self.worker.send("FreezeGCReq", freeze_fields(self.contract))
        await self.coordination.tell("freeze gc")

    freeze_gc = blocking(async_freeze_gc)

    def _check_device(self) -> None:
        if self.contract.server_args.get("device") == "cpu":
            # Its scheduler asks CUDA without looking, and ends.
            raise RequestRejected("An engine on the CPU has no accelerator's memory to release or resume.")
