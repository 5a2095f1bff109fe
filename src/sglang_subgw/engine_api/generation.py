"""Generation: SGLang's Engine.generate and async_generate, and aborts."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, Final

from ..coordination.carried_bytes import without_bytes
from ..worker.call import Call
from ..worker.requests.expand import expand
from ..worker.requests.request import GenerateRequest
from ..worker.requests.routing import check_meeting, check_ranks, follows_rooms
from .base import EngineCalls, Output, Outputs
from .blocking import with_parameters_of
from .output_stream import OutputStream

_ENGINE_SIDE: Final = ("image_data", "audio_data", "video_data", "mm_hashes", "mm_content_hashes", "kv_hints")
"""Parameters that SGLang's own worker must see to: a processor of images, structs of its own."""
_OLDER_RANK: Final = 25
"""The place of `data_parallel_rank` among the parameters of `generate`."""
_MEETING: Final = (
    "input_ids",
    "sampling_params",
    "routed_dp_rank",
    "disagg_prefill_dp_rank",
    "bootstrap_host",
    "bootstrap_port",
    "bootstrap_room",
)


class GenerationCalls(EngineCalls):
    """What asks for text."""

    broadcast_abort: Callable[[str], None] | None = None
    """Tells the other shards to abort a rid that isn't this shard's; set by the shard's entry."""

    async def submit(self, request: GenerateRequest) -> Call:
        """Check, tokenize and send; raises RequestRejected or EngineUnavailable before anything is answered."""
        return await self.worker.submit(request)

    async def async_generate(
        self,
        prompt: str | list[str] | None = None,
        sampling_params: dict[str, Any] | list[dict[str, Any]] | None = None,
        input_ids: list[int] | list[list[int]] | None = None,
        image_data: Any = None,
        audio_data: Any = None,
        video_data: Any = None,
        mm_hashes: Any = None,
        mm_content_hashes: Any = None,
        return_logprob: bool | list[bool] | None = False,
        logprob_start_len: int | list[int] | None = None,
        top_logprobs_num: int | list[int] | None = None,
        token_ids_logprob: list[int] | list[list[int] | None] | None = None,
        lora_path: str | list[str | None] | None = None,
        custom_logit_processor: str | list[str | None] | None = None,
        require_reasoning: bool = False,
        return_hidden_states: bool | str | list[bool | str] = False,
        return_routed_experts: bool = False,
        routed_experts_start_len: int = 0,
        stream: bool = False,
        bootstrap_host: str | list[str | None] | None = None,
        bootstrap_port: int | list[int | None] | None = None,
        bootstrap_room: int | list[int | None] | None = None,
        routed_dp_rank: int | None = None,
        disagg_prefill_dp_rank: int | None = None,
        kv_hints: dict[str, Any] | None = None,
        data_parallel_rank: int | None = None,
        external_trace_header: dict[str, Any] | None = None,
        rid: str | list[str] | None = None,
        session_params: dict[str, Any] | None = None,
        priority: int | None = None,
        session_id: str | None = None,
        *,
        cache_salt: str | list[str] | None = None,
        **options: Any,
    ) -> Outputs | AsyncIterator[Output]:
        """A dict, a list of them for a batch, or an iterator when `stream`; more `options` as in `GenerateRequest`.

        Raises RequestRejected for what the engine must not see, EngineRejected and EngineUnavailable for its answers.
        """
        given = {name: value for name, value in locals().items() if name not in ("self", "options")}
        given["routed_dp_rank"] = _rank(routed_dp_rank, given.pop("data_parallel_rank"))
        traced = external_trace_header is not None and bool(self.contract.server_args.get("enable_trace"))
        if traced or any(given[name] is not None for name in _ENGINE_SIDE):
            return await self._generate_there({**given, **options})
        for name in (*_ENGINE_SIDE, "external_trace_header"):
            del given[name]
        request = GenerateRequest(text=given.pop("prompt"), **given, **options)
        call = await self.submit(request)
        if stream:
            return OutputStream(call, self.worker.loop, self.contract.features.incremental_streaming_output)
        return await self._outputs(call)

    @with_parameters_of(async_generate)
    def generate(self, *args: Any, **given: Any) -> Outputs | Iterator[Output]:
        """`async_generate` for other threads than the loop's: a dict, a list, or a plain iterator when `stream`."""
        if "data_parallel_rank" in given or len(args) > _OLDER_RANK:
            # Warned of here: in the loop's thread nothing tells whose call it is.
            bound = inspect.signature(self.async_generate).bind(*args, **given)
            named = bound.arguments
            named["routed_dp_rank"] = _rank(named.get("routed_dp_rank"), named.pop("data_parallel_rank", None))
            args, given = bound.args, bound.kwargs
        answer = self._blocking(self.async_generate(*args, **given))
        if isinstance(answer, (dict, list)):
            return answer
        return self._blocking_iterator(answer, "async_generate")

    def abort(self, rid: str = "", abort_all: bool = False) -> bool:
        """Abort by the client's rid or the internal one, on whichever shard; `abort_all` ends all of every shard.

        True if this shard had it; else the other shards are told. Works in any thread.
        """
        if self._is_here():
            return self._abort(rid, abort_all)

        async def abort() -> bool:
            return self._abort(rid, abort_all)

        return self._blocking(abort())

    def _abort(self, rid: str, abort_all: bool) -> bool:
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

    async def _generate_there(self, arguments: dict[str, Any]) -> Outputs | AsyncIterator[Output]:
        """On SGLang's own worker in the engine's process."""
        self._check_meeting(arguments)
        given, blob = without_bytes({name: value for name, value in arguments.items() if value is not None})
        if arguments["stream"]:
            return self.coordination.stream("generate", given, blob)
        outputs: Outputs
        outputs, _ = await self.coordination.call("generate", given, blob)
        return outputs

    def _check_meeting(self, arguments: dict[str, Any]) -> None:
        """What SGLang's own worker doesn't check, and its schedulers end by."""
        if self.contract.features.disaggregation_mode == "null" and not follows_rooms(self.contract):
            return
        named = {name: arguments[name] for name in _MEETING}
        request = GenerateRequest(text=arguments["prompt"], **named)
        check_ranks(request, self.contract)
        check_meeting(request, expand(request), self.contract)


def _rank(routed: int | None, deprecated: int | None) -> int | None:
    """The older name counts where the newer one isn't given; the caller's caller is warned of it."""
    if deprecated is None:
        return routed
    warnings.warn("'data_parallel_rank' is deprecated, use 'routed_dp_rank' instead.", DeprecationWarning, stacklevel=3)
    return deprecated if routed is None else routed
