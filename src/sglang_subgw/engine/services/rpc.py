"""The schedulers' RPC socket, of which an Engine has one: for any thread, and for several at once."""

from __future__ import annotations

import threading
from typing import Any, Final

from ...errors import EngineUnavailable

_POLL_MS: Final = 200


class SchedulerRpc:
    """From `start` to `close` this is the engine's `collective_rpc`, and so what its `save_…` methods use."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        self._ended = ""

    def start(self) -> None:
        """SGLang's own uses the socket without asking who else does, and waits for a dead scheduler for ever."""
        self._engine.collective_rpc = self.collective_rpc

    def close(self) -> None:
        """The class's own method comes to light again. Safe to call twice."""
        vars(self._engine).pop("collective_rpc", None)

    def end(self, reason: str) -> None:
        """The engine is gone: who waits for its schedulers waits no longer."""
        self._ended = reason

    def collective_rpc(self, method: str, **kwargs: Any) -> None:
        """Have every scheduler call one of its methods.

        Raises AssertionError, as SGLang's does, with what a scheduler says of a failure; EngineUnavailable if it ends.
        """
        import zmq
        from sglang.srt.managers.io_struct import RpcReqInput, sock_recv, sock_send

        # One at a time: the answers carry no id.
        with self._lock:
            socket = self._engine.send_to_rpc
            sock_send(socket, RpcReqInput(method=method, parameters=kwargs))
            while not socket.poll(_POLL_MS, zmq.POLLIN):
                if self._ended:
                    raise EngineUnavailable(f"The engine did not answer collective_rpc: {self._ended}.")
            answer = sock_recv(socket)
        if not answer.success:
            raise AssertionError(answer.message)
