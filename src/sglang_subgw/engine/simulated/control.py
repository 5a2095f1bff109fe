"""Answers to control messages: those with a meaning here by their meaning, every other kind with a plain success."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from .scheduler import Scheduler
from .schema import structs
from .structs import Struct, make


class Control:
    """The scheduler's control plane; an answer goes to the worker that asked, once per data-parallel rank."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._pending_flush: tuple[Struct, float] | None = None
        self._ranks = scheduler.contract.features.num_dp_ranks
        self._handlers: dict[str, Callable[[Struct], None]] = {
            "FlushCacheReqInput": self._flush,
            "GetInternalStateReq": self._internal_state,
            "OpenSessionReqInput": self._open_session,
            "CloseSessionReqInput": self._close_session,
            "UpdateWeightFromDiskReqInput": self._update_weights,
            "UpdateWeightVersionReqInput": self._update_weight_version,
            "PauseGenerationReqInput": self._pause,
            "ContinueGenerationReqInput": self._continue,
            "AbortReq": scheduler.abort,
            "FreezeGCReq": lambda message: None,
            "ConfigureLoggingReq": lambda message: None,
            "ShutdownReq": lambda message: None,
        }

    def handle(self, message: Struct) -> None:
        """Act on one control message."""
        self._handlers.get(message.__struct_name__, self._succeed)(message)

    def check_pending(self) -> None:
        """Answer a flush that waited for the engine to be idle."""
        if self._pending_flush is None:
            return
        message, deadline = self._pending_flush
        if self._scheduler.idle:
            self._pending_flush = None
            self._answer(message, "FlushCacheReqOutput", success=self._scheduler.flush())
        elif time.monotonic() >= deadline:
            self._pending_flush = None
            text = "Timed out waiting for idle state."
            self._answer(message, "FlushCacheReqOutput", success=False, message=text)

    def _answer(self, request: Struct, kind: str, /, **fields: Any) -> None:
        worker = request.http_worker_ipc
        reply = make(kind, http_worker_ipc=worker, **fields)
        self._scheduler.replies.extend([(worker, reply)] * self._ranks)

    def _flush(self, message: Struct) -> None:
        if self._pending_flush is not None:
            text = "Another flush_cache is already in progress."
            self._answer(message, "FlushCacheReqOutput", success=False, message=text)
        elif (message.timeout_s or 0.0) > 0 and not self._scheduler.idle:
            self._pending_flush = (message, time.monotonic() + message.timeout_s)
        else:
            self._answer(message, "FlushCacheReqOutput", success=self._scheduler.flush())

    def _internal_state(self, message: Struct) -> None:
        scheduler = self._scheduler
        state = {
            **scheduler.contract.server_args,
            "last_gen_throughput": 0.0,
            "effective_max_running_requests_per_dp": 1 << 10,
            "num_running_reqs": len(scheduler.running),
            "num_waiting_reqs": len(scheduler.waiting),
        }
        self._answer(message, "GetInternalStateReqOutput", internal_state=state)

    def _open_session(self, message: Struct) -> None:
        session = message.session_id or f"session-{len(self._scheduler.sessions)}"
        new = session not in self._scheduler.sessions
        self._scheduler.sessions.add(session)
        self._answer(message, "OpenSessionReqOutput", session_id=session, success=new)

    def _close_session(self, message: Struct) -> None:
        self._scheduler.sessions.discard(message.session_id)

    def _update_weights(self, message: Struct) -> None:
        self._scheduler.weight_version = message.weight_version or self._scheduler.weight_version
        self._answer(
            message, "UpdateWeightFromDiskReqOutput", success=True, message="Succeeded to update model weights."
        )

    def _update_weight_version(self, message: Struct) -> None:
        self._scheduler.weight_version = message.new_version
        self._succeed(message)

    def _pause(self, message: Struct) -> None:
        self._scheduler.paused = True
        if message.mode == "retract":
            self._scheduler.retract()

    def _continue(self, message: Struct) -> None:
        self._scheduler.paused = False

    def _succeed(self, message: Struct) -> None:
        kind = message.__struct_name__.removesuffix("Input") + "Output"
        spec = structs().get(kind)
        if spec is None:
            self._scheduler.violations.append(f"{message.__struct_name__} isn't answered by any SGLang")
            return
        blank: dict[str, Any] = {"bool": True, "str": "", "int": 0, "float": 0.0}
        fields = {
            name: blank.get(kind_, {} if kind_[0] == "dict" else [])
            if isinstance(kind_, str) or kind_[0] != "union"
            else None
            for name, kind_ in spec.types.items()
            if name not in spec.defaults
        }
        self._answer(message, kind, **fields)
