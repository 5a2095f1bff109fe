"""SGLang's own Engine and worker with nothing behind them: what they send is kept, and answered with success."""

from __future__ import annotations

import asyncio
import pickle
from types import SimpleNamespace
from typing import Any, Self

import pytest

from sglang_subgw.simulated.control.plane import answer_kind
from sglang_subgw.simulated.wire.checks import UNANSWERED

ENDPOINT = "ipc:///stock/worker"


class Wire:
    """One of SGLang's two encodings, by SGLang's own code."""

    def __init__(self, io_struct: Any, codec: str) -> None:
        self.encode = pickle.dumps if codec == "pickle" else io_struct.msgpack_encode
        self.decode = pickle.loads if codec == "pickle" else io_struct.msgpack_decode


class StockEngine:
    """An sglang.Engine on a TokenizerWorker; `sent` is what a router would have read."""

    def __init__(self, srt: Any, wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sent: list[Any] = []
        self._io = srt.io_struct
        self._wire = wire
        self._loop = asyncio.new_event_loop()
        self._patch(srt, monkeypatch)
        config = {"load_format": "auto"}
        worker = self.worker = srt.multi.TokenizerWorker.__new__(srt.multi.TokenizerWorker)
        vars(worker).update(
            tokenizer_ipc_name=ENDPOINT,
            send_to_scheduler=None,
            event_loop=self._loop,
            elastic_worker_count=1,
            mm_processor=None,
            enable_metrics=False,
            rid_to_state={},
            session_futures={},
            record_config_updates=lambda source, **fields: config.update(fields),
            config_value=config.__getitem__,
            server_args=SimpleNamespace(resolved_dict=dict, launch_command=""),
            startup_time=None,
        )
        worker.init_request_dispatcher()
        worker.init_weight_update()
        worker.init_lora()
        self.engine = srt.engine.Engine.__new__(srt.engine.Engine)
        vars(self.engine).update(
            tokenizer_manager=worker,
            loop=self._loop,
            send_to_rpc=None,
            _scheduler_init_result=SimpleNamespace(scheduler_infos=[{}]),
        )

    def call(self, name: str, arguments: dict[str, Any], request: str | None) -> Any:
        """One of Engine's methods or, with the class of its request, one of the worker's."""
        if request is None:
            return getattr(self.engine, name)(**arguments)
        if request == "arguments":
            return self._loop.run_until_complete(getattr(self.worker, name)(**arguments))
        return self._loop.run_until_complete(getattr(self.worker, name)(getattr(self._io, request)(**arguments)))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._loop.close()

    def _patch(self, srt: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        settings = {
            "get_parallel": SimpleNamespace(num_dp_ranks=1, dp_size=1, tp_size=1),
            "get_lora": SimpleNamespace(enable_lora=True, max_loaded_loras=None, lora_paths=None),
            "get_model": SimpleNamespace(checkpoint_engine_wait_weights_before_ready=False),
            "get_serving": SimpleNamespace(enable_streaming_session=True, tokenizer_worker_num=2),
            "get_device": SimpleNamespace(gc_threshold=[700, 10, 10]),
        }
        for module in (srt.manager, srt.mixin, srt.engine):
            for name, value in settings.items():
                if hasattr(module, name):
                    monkeypatch.setattr(module, name, lambda value=value: value)
        monkeypatch.setattr(srt.manager, "freeze_gc", lambda *args: None)
        monkeypatch.setattr(srt.manager, "sock_send", lambda socket, obj: self._on_send(obj))
        monkeypatch.setattr(srt.manager, "async_sock_send", self._on_async_send)
        monkeypatch.setattr(srt.engine, "sock_send", lambda socket, obj: self.sent.append(obj))
        monkeypatch.setattr(
            srt.engine, "sock_recv", lambda socket, flags: self._io.RpcReqOutput(success=True, message="")
        )

    async def _on_async_send(self, socket: Any, message: Any) -> None:
        self._on_send(message)

    def _on_send(self, message: Any) -> None:
        self.sent.append(self._wire.decode(self._wire.encode(message)))
        answer = self._answer(message)
        if answer is not None:
            self._loop.call_soon(self.worker._result_dispatcher, answer)

    def _answer(self, message: Any) -> Any:
        kind, io = type(message).__name__, self._io
        if kind in ("PauseGenerationReqInput", "ContinueGenerationReqInput"):
            broadcast = io.PauseContinueBroadcastReq(is_pause=kind[0] == "P")
            self._loop.call_soon(self.worker._handle_pause_continue_broadcast, broadcast)
            return None
        if kind in UNANSWERED:
            return None
        cls = getattr(io, answer_kind(kind))
        blank = {"success": True, "message": "", "internal_state": {}, "parameter": None}
        blank["session_id"] = getattr(message, "session_id", None)
        return cls(**{name: value for name, value in blank.items() if name in cls.__struct_fields__})
