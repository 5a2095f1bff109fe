"""What a real engine relies on and does not check: each breach is a violation, as it would hurt a real one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from .schema import mismatch
from .structs import StandIn

UNANSWERED: Final = frozenset(
    {
        "AbortReq",
        "CloseSessionReqInput",
        "ConfigureLoggingReq",
        "ContinueGenerationReqInput",
        "FreezeGCReq",
        "PauseGenerationReqInput",
        "ShutdownReq",
        "TokenizerWorkerRegistrationReq",
    }
)
"""Messages that nobody answers: they need no address."""


def violations(message: StandIn) -> Iterator[str]:
    """Everything wrong with a message that was decoded."""
    for name, kind in message.__spec__.types.items():
        if problem := mismatch(getattr(message, name), kind):
            yield f"{message.__struct_name__}.{name}: {problem}"
        elif isinstance(value := getattr(message, name), StandIn):
            yield from violations(value)
    match message.__struct_name__:
        case "TokenizedGenerateReqInput" | "TokenizedEmbeddingReqInput":
            yield from _request(message)
        case "BatchTokenizedGenerateReqInput" | "BatchTokenizedEmbeddingReqInput":
            for item in message.batch:
                yield from violations(item)
        case "AbortReq":
            if not message.rid and not message.abort_all:
                yield "AbortReq.rid: empty, which would abort every request"
        case "ShutdownReq":
            yield "ShutdownReq: a worker must not stop the engine"
        case "SamplingParams":
            yield from _sampling_params(message)
        case "TokenizerWorkerRegistrationReq":
            if not message.worker_ipc_name.startswith("ipc://"):
                yield f"TokenizerWorkerRegistrationReq.worker_ipc_name: {message.worker_ipc_name!r}"
    if "http_worker_ipc" in message.__spec__.types and message.__struct_name__ not in UNANSWERED:
        worker = message.http_worker_ipc
        if not isinstance(worker, str) or not worker.startswith("ipc://"):
            yield f"{message.__struct_name__}.http_worker_ipc: {worker!r} is no address to answer to"


def _request(message: StandIn) -> Iterator[str]:
    if not isinstance(message.rid, str) or not message.rid:
        yield f"{message.__struct_name__}.rid: {message.rid!r}"
    if message.input_ids is None and getattr(message, "input_embeds", None) is None:
        yield f"{message.__struct_name__}.input_ids: None"
    if not isinstance(message.sampling_params, StandIn):
        yield f"{message.__struct_name__}.sampling_params: {message.sampling_params!r}"


def _sampling_params(params: StandIn) -> Iterator[str]:
    if params.is_normalized is not True:
        yield "SamplingParams.is_normalized: missing, stop strings would be reset"
    for name in ("stop_strs", "stop_regex_strs"):
        if not isinstance(getattr(params, name), list):
            yield f"SamplingParams.{name}: {getattr(params, name)!r} instead of a list"
    if params.stop_strs and not params.stop_str_max_len:
        yield "SamplingParams.stop_str_max_len: 0 with stop strings"
    if params.stop is not None or params.stop_regex is not None:
        yield "SamplingParams.stop: not cleared"
    if not 0 < params.top_p <= 1 or params.temperature < 0 or params.top_k < 1:
        yield f"SamplingParams: out of range: {params}"
