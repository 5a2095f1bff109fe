"""A scheduler without a model for unmodified SGLang: scripted tokens, one step for all requests, at a chosen interval.

`run_scheduler` takes the place of SGLang's own `run_scheduler_process`; router, detokenizer and server stay SGLang's.
"""

from __future__ import annotations

import gc
import logging
import signal
import time
import traceback
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from .pace import Pace

if TYPE_CHECKING:
    from .scheduler_io import SchedulerIo

log = logging.getLogger("sglang")

_MAX_TOTAL_TOKENS: Final = 1 << 24
_FORCE_STREAM_INTERVAL: Final = 50
"""A request that isn't streamed is reported on every so many tokens, as SGLang does."""
_CONTEXT_TOKENS: Final = 5
"""How many prompt tokens the detokenizer gets to decode the first output after."""


@dataclass(frozen=True, slots=True)
class SchedulerScript:
    """What a simulated scheduler does; crosses the border to its process."""

    pace_path: str
    tokens: tuple[int, ...]
    """Sampled over and over; each should decode to some text of its own."""

    def scheduler(self) -> Callable[..., None]:
        """What SGLang is given as `run_scheduler_process_func`."""
        return partial(run_scheduler, self)


def run_scheduler(
    script: SchedulerScript,
    server_args: Any,
    port_args: Any,
    gpu_id: int,
    *ranks_and_writer: Any,
) -> None:
    """Serve in a process that SGLang spawned, until it is told to stop or its parent ends.

    How many ranks there are differs between SGLang's versions: the data-parallel one is before the writer in each.
    """
    import psutil  # type: ignore
    from setproctitle import setproctitle
    from sglang.srt.utils.common import kill_itself_when_parent_died

    from .scheduler_io import open_io

    kill_itself_when_parent_died()
    setproctitle("sglang::scheduler (simulated)")
    parent = psutil.Process().parent()
    started = time.monotonic()
    writer_place = next(i for i, argument in enumerate(ranks_and_writer) if hasattr(argument, "send"))
    dp_rank, pipe_writer = ranks_and_writer[writer_place - 1 : writer_place + 1]
    try:
        ranks = {"world_rank": 0, "dp_rank": dp_rank, "gpu_id": gpu_id}
        io, context_length = open_io(server_args, port_args, ranks, _MAX_TOTAL_TOKENS)
        with Pace(script.pace_path) as pace:
            scheduler = _Scheduler(script, pace, io, context_length)
            pipe_writer.send(_ready_info(context_length, time.monotonic() - started))
            scheduler.run()
    except Exception as exc:
        # SGLang shows the last line of it.
        log.error("%s\nThe simulated scheduler failed: %r", traceback.format_exc(), exc)
        parent.send_signal(signal.SIGQUIT)


def _ready_info(context_length: int, seconds: float) -> dict[str, Any]:
    from sglang.srt.model_executor.graph_memory_usage import empty_graph_time_usage

    return {
        "status": "ready",
        "max_total_num_tokens": _MAX_TOTAL_TOKENS,
        "max_req_input_len": context_length - 1,
        "startup_time": {
            "load_weight": 0.0,
            "kv_cache_allocation": 0.0,
            "scheduler_e2e": seconds,
            "cuda_graph": empty_graph_time_usage(),
        },
        "hicache_object_layout": {
            "enabled": False,
            "backend": None,
            "page_size": 1,
            "hicache_object_layout": {"pools": []},
            "reason": "There is no cache: the scheduler is simulated",
        },
    }


class _Request:
    """One request that runs."""

    __slots__ = (
        "context",
        "interval",
        "limit",
        "made",
        "no_stop_trim",
        "prompt_tokens",
        "reason",
        "rid",
        "sent",
        "skip_special",
        "spaces",
        "streams",
        "time_stats",
        "worker",
    )

    def __init__(self, message: Any, context_length: int, time_stats: Any) -> None:
        params = message.sampling_params
        prompt = message.input_ids
        limit = params.max_new_tokens
        self.rid: str = message.rid
        self.worker: str | None = message.http_worker_ipc
        self.prompt_tokens = len(prompt)
        self.context = prompt[-_CONTEXT_TOKENS:]
        room = max(0, context_length - len(prompt) - 1)
        self.limit = room if limit is None else min(limit, room)
        self.streams: bool = message.stream
        self.interval = (params.stream_interval or 1) if self.streams else _FORCE_STREAM_INTERVAL
        self.skip_special: bool = params.skip_special_tokens
        self.spaces: bool = params.spaces_between_special_tokens
        self.no_stop_trim: bool = params.no_stop_trim
        self.time_stats = time_stats
        self.reason: dict[str, Any] | None = None
        self.made = 0
        self.sent = 0


class _Scheduler:
    """SGLang's scheduler as its neighbours see it: the same sockets, messages and order."""

    def __init__(self, script: SchedulerScript, pace: Pace, io: SchedulerIo, context_length: int) -> None:
        from sglang.srt.managers import io_struct
        from sglang.srt.observability.req_time_stats import SchedulerReqTimeStats

        self._io = io
        self._structs = io_struct
        self._pace = pace
        self._context_length = context_length
        self._new_time_stats = SchedulerReqTimeStats
        self._tokens = array("q", script.tokens)
        self._single = [array("q", [token]) for token in script.tokens]
        self._running: list[_Request] = []
        self._stopping = False
        self._blank = _blank_columns(io_struct.BatchTokenIDOutput)

    def run(self) -> None:
        """One step after the other; asleep while nothing runs."""
        next_step = 0.0
        while not self._stopping:
            if not self._running:
                self._io.wait(None)
            elif (wait := next_step - time.monotonic()) >= 0.001:
                self._io.wait(int(wait * 1000))
            elif wait > 0:
                # The last part of a millisecond, which the others can't wait for.
                time.sleep(wait)
            for message in self._io.receive():
                self._handle(message)
            if self._running and time.monotonic() >= next_step:
                next_step = max(next_step + self._pace.seconds, time.monotonic())
                self._step()

    def _handle(self, message: Any) -> None:
        match type(message).__name__:
            case "TokenizedGenerateReqInput":
                self._add(message)
            case "BatchTokenizedGenerateReqInput":
                for item in message.batch:
                    self._add(item)
            case "AbortReq":
                self._abort(message)
            case "FlushCacheReqInput":
                self._io.answer(message, self._structs.FlushCacheReqOutput(success=not self._running))
            case "GetInternalStateReq":
                state = {"last_gen_throughput": 0.0, "memory_usage": {}, "num_running_reqs": len(self._running)}
                self._io.answer(message, self._structs.GetInternalStateReqOutput(internal_state=state))
            case "ShutdownReq":
                self._stopping = True
            case "FreezeGCReq":
                gc.freeze()
                self._io.pass_on(message)
            case "ConfigureLoggingReq" | "PauseGenerationReqInput" | "ContinueGenerationReqInput":
                return
            case kind:
                log.warning("The simulated scheduler does not know %s, and ignores it.", kind)

    def _add(self, message: Any) -> None:
        self._running.append(_Request(message, self._context_length, self._new_time_stats()))

    def _abort(self, message: Any) -> None:
        for request in self._running:
            if message.abort_all or request.rid.startswith(message.rid):
                request.reason = {"type": "abort", "message": "Aborted", "status_code": None, "err_type": None}

    def _step(self) -> None:
        """A token for every request, and one message with all that is due."""
        due, ended = [], False
        for request in self._running:
            request.made += 1
            if request.made >= request.limit:
                request.reason = request.reason or {"type": "length", "length": request.limit}
            if request.reason is not None:
                ended = True
                due.append(request)
            elif request.made - request.sent >= request.interval or (request.streams and not request.sent):
                due.append(request)
        if ended:
            self._running = [request for request in self._running if request.reason is None]
        if due:
            self._io.send_outputs(self._message(due))

    def _message(self, due: list[_Request]) -> Any:
        count = len(due)
        zeros = [0] * count
        # As SGLang: a request without any output still has one token made for it, which is not shown.
        outputs = [self._output(request) for request in due]
        decode_ids = [ids if request.sent else request.context + ids for request, ids in zip(due, outputs, strict=True)]
        read_offsets = [len(request.context) for request in due]
        completion = [min(request.made, request.limit) for request in due]
        for request, made in zip(due, completion, strict=True):
            request.sent = made or 1
        return self._structs.BatchTokenIDOutput(
            rids=[request.rid for request in due],
            http_worker_ipcs=[request.worker for request in due],
            finished_reasons=[request.reason for request in due],
            decoded_texts=[""] * count,
            decode_ids=decode_ids,
            read_offsets=read_offsets,
            output_ids=outputs,
            skip_special_tokens=[request.skip_special for request in due],
            spaces_between_special_tokens=[request.spaces for request in due],
            no_stop_trim=[request.no_stop_trim for request in due],
            prompt_tokens=[request.prompt_tokens for request in due],
            reasoning_tokens=zeros,
            completion_tokens=completion,
            cached_tokens=zeros,
            cached_tokens_details=[None] * count,
            retraction_counts=zeros,
            dp_ranks=[0] * count,
            image_tokens=zeros,
            audio_tokens=zeros,
            video_tokens=zeros,
            time_stats=self._structs.wrap_as_pickle([request.time_stats for request in due]),
            **self._blank,
        )

    def _output(self, request: _Request) -> array[int]:
        start, end = request.sent, min(request.made, request.limit)
        size = len(self._tokens)
        if end - start == 1:
            return self._single[start % size]
        return array("q", [self._tokens[i % size] for i in range(start, end)])


def _blank_columns(message: Any) -> dict[str, Any]:
    """The required columns that this scheduler has nothing for, None as where nobody asked for them."""
    from msgspec.structs import fields

    given = {
        "rids", "http_worker_ipcs", "finished_reasons", "decoded_texts", "decode_ids", "read_offsets", "output_ids",
        "skip_special_tokens", "spaces_between_special_tokens", "no_stop_trim", "prompt_tokens", "reasoning_tokens",
        "completion_tokens", "cached_tokens",
    }  # fmt: skip
    return {field.name: None for field in fields(message) if field.required and field.name not in given}
