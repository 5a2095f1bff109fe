"""What is around a scheduler in its process: SGLang's sockets, or its Rust server's rings. Imported there alone."""

from __future__ import annotations

import os
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, Protocol

import zmq
from sglang.srt.configs.model_config import ModelConfig
from sglang.srt.managers.io_struct import sock_recv, sock_send
from sglang.srt.utils.network import get_zmq_socket

_FOREVER_MS = 1000
"""The Rust server's wait has no end of its own: one that is told to stop must get a turn."""


class SchedulerIo(Protocol):
    """Messages in, outputs and answers out."""

    def wait(self, milliseconds: int | None) -> bool:
        """Until there is a message or the time is over, without end for None; whether there may be one."""

    def receive(self) -> Iterator[Any]:
        """What has arrived."""

    def send_outputs(self, message: Any) -> None:
        """A step's outputs, on their way to being text."""

    def pass_on(self, message: Any) -> None:
        """A control message that the detokenizer must see as well."""

    def answer(self, request: Any, answer: Any) -> None:
        """To whoever sent a control message."""


class SocketIo:
    """The sockets of SGLang's scheduler on rank 0."""

    def __init__(self, port_args: Any) -> None:
        context = zmq.Context(2)
        self._input = get_zmq_socket(context, zmq.PULL, port_args.scheduler_input_ipc_name, False)
        self._to_tokenizer = get_zmq_socket(context, zmq.PUSH, port_args.tokenizer_ipc_name, False)
        self._to_detokenizer = get_zmq_socket(context, zmq.PUSH, port_args.detokenizer_ipc_name, False)

    def wait(self, milliseconds: int | None) -> bool:
        return bool(self._input.poll(milliseconds))

    def receive(self) -> Iterator[Any]:
        while True:
            try:
                yield sock_recv(self._input, zmq.NOBLOCK)
            except zmq.Again:
                return

    def send_outputs(self, message: Any) -> None:
        sock_send(self._to_detokenizer, message)

    def pass_on(self, message: Any) -> None:
        sock_send(self._to_detokenizer, message)

    def answer(self, request: Any, answer: Any) -> None:
        answer.http_worker_ipc = request.http_worker_ipc
        sock_send(self._to_tokenizer, answer)


class RustIo:
    """SGLang's Rust server, which tokenizes, detokenizes and serves in threads of the scheduler's process."""

    def __init__(self, server_args: Any, model_config: Any, max_total_tokens: int) -> None:
        from sglang.srt.rust_server.server import RustServer

        # What RustServer.launch reads of a Scheduler.
        scheduler = SimpleNamespace(
            server_args=server_args,
            model_config=model_config,
            processor=None,
            tokenizer=None,
            page_size=1,
            max_total_num_tokens=max_total_tokens,
            max_req_input_len=model_config.context_len - 1,
            load_snapshot_writer=None,
            kv_events_publisher=SimpleNamespace(local_kv_event_sources=lambda page_size: []),
            rust_server_tokenizer_path=lambda: server_args.model_path,
        )
        self._server = RustServer.launch(scheduler)

    def wait(self, milliseconds: int | None) -> bool:
        self._server.wait_request(_FOREVER_MS if milliseconds is None else milliseconds)
        return True

    def receive(self) -> Iterator[Any]:
        yield from self._server.drain(0)

    def send_outputs(self, message: Any) -> None:
        self._server.push_generation(message, {})

    def pass_on(self, message: Any) -> None:
        """Its detokenizer is no process of its own."""

    def answer(self, request: Any, answer: Any) -> None:
        self._server.push_control_output(request, answer)


def open_io(server_args: Any, port_args: Any, ranks: dict[str, Any], max_total_tokens: int) -> tuple[SchedulerIo, int]:
    """What this SGLang was started with, and the model's context length."""
    if os.environ.get("SGLANG_RUST_SERVER", "0") in ("", "0"):
        return SocketIo(port_args), ModelConfig.from_server_args(server_args).context_len
    from sglang.srt.runtime_context import SpawnRanks, publish

    publish(server_args, role="scheduler", ranks=SpawnRanks(**ranks))
    config = ModelConfig.from_server_args(server_args)
    return RustIo(server_args, config, max_total_tokens), config.context_len
