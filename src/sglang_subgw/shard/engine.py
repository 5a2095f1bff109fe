"""What an application in a shard sees of the engine: one object, no wire, no mode."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from ..contract import EngineContract, ShardState, Slot
from ..errors import RequestError
from .call import Call
from .control import Control
from .draining import Draining
from .request import GenerateRequest
from .tokenizer import ShardTokenizer
from .worker import TokenizerWorker


class ShardEngine:
    """The facade over one shard's TokenizerWorker; everything runs on the shard's own event loop."""

    def __init__(self, worker: TokenizerWorker, slots: Sequence[Slot] = ()) -> None:
        self.worker = worker
        self.end = Draining()
        self.broadcast_abort: Callable[[str], None] | None = None
        """Tells the other shards to abort a rid that isn't this shard's; set by the shard's entry."""
        self._slots = slots

    @property
    def contract(self) -> EngineContract:
        """What the engine published about itself."""
        return self.worker.contract

    @property
    def tokenizer(self) -> ShardTokenizer:
        """The shard's own tokenizer."""
        return self.worker.tokenizer

    @property
    def control(self) -> Control:
        """Control messages with an answer."""
        return self.worker.control

    @property
    def draining(self) -> bool:
        """The shard is stopping: what runs goes on, nothing new is to be taken."""
        return self.end.begun.is_set()

    async def until_draining(self) -> None:
        """Until the shard is stopping; by awaiting this a `serve` function also says that it serves from now on."""
        await self.end.wait()

    async def submit(self, request: GenerateRequest) -> Call:
        """Check, tokenize and send; raises RequestRejected or EngineUnavailable before anything is answered."""
        return await self.worker.submit(request)

    async def async_generate(
        self,
        prompt: str | list[str] | None = None,
        sampling_params: dict[str, Any] | list[dict[str, Any]] | None = None,
        input_ids: list[int] | list[list[int]] | None = None,
        *,
        stream: bool = False,
        **options: Any,
    ) -> dict[str, Any] | list[dict[str, Any]] | AsyncIterator[dict[str, Any]]:
        """SGLang's Engine.async_generate: a dict, a list of them for a batch, or an iterator when `stream`.

        Other parameters have the names of `GenerateRequest`; an unknown one is a TypeError.
        """
        request = GenerateRequest(
            text=prompt, input_ids=input_ids, sampling_params=sampling_params, stream=stream, **options
        )
        call = await self.submit(request)
        if stream:
            return self._stream(call)
        async with call:
            await call.wait()
            outputs = [sample.output() for sample in call.samples]
        return outputs[0] if call.is_single else outputs

    async def _stream(self, call: Call) -> AsyncIterator[dict[str, Any]]:
        incremental = self.contract.features.incremental_streaming_output
        async with call:
            async for sample in call:
                out = sample.take() if incremental else sample.output()
                if not call.is_single:
                    out["index"] = sample.index
                yield out

    def abort(self, rid: str = "", abort_all: bool = False) -> bool:
        """Abort by the client's rid or the internal one, on whichever shard; `abort_all` ends all of every shard.

        True if this shard had it; else the other shards are told.
        """
        if abort_all:
            self.worker.abort_all()
            return True
        found = self.abort_local(rid)
        if not found and rid and self.broadcast_abort is not None:
            self.broadcast_abort(rid)
        return found

    def abort_local(self, rid: str) -> bool:
        """Abort by the client's rid or the internal one on this shard only; True if it was here."""
        return self.worker.abort(rid)

    def fail_all(self, error: RequestError, *, for_good: bool = False) -> None:
        """End everything in flight with `error`; `for_good` (the engine is gone) also what still comes."""
        self.worker.fail_all(error, for_good=for_good)

    async def flush_cache(self, timeout_s: float = 0.0) -> dict[str, Any]:
        """Empty the engine's prefix cache: `{"success": bool, "message": str}`."""
        answers = await self.control.ask(
            "FlushCacheReqInput", {"timeout_s": float(timeout_s)}, "FlushCacheReqOutput", timeout_s + 30.0
        )
        return {"success": bool(answers[0].get("success")), "message": str(answers[0].get("message") or "")}

    async def get_internal_state(self) -> list[dict[str, Any]]:
        """The scheduler's own state, one dict per data-parallel rank."""
        answers = await self.control.ask("GetInternalStateReq", {}, "GetInternalStateReqOutput", 30.0)
        return [answer.get("internal_state") or {} for answer in answers]

    async def health_generate(self, timeout: float) -> bool:
        """Ask for one token; True when anything arrives from the engine within `timeout` seconds."""
        return await self.worker.health(timeout)

    def shards(self) -> list[dict[str, int | str]]:
        """The index, state and counters of every shard there is now, in shard order."""
        return [
            {"index": index, **slot.snapshot()}
            for index, slot in enumerate(self._slots)
            if slot.state is not ShardState.EMPTY
        ]
