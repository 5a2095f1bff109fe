"""SGLang's router without decoding and encoding every request again: frames from workers go on as they came.

SGLang's own decodes each to see whether it is one of the few that it must act on (a worker's registration, pause,
continue); those are still handed to it, and nothing of its duties is done twice or differently here.
"""

from __future__ import annotations

import asyncio
import logging
import pickle
import re
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import zmq

from ...errors import EngineStartError
from ...system.seldom import Seldom

log = logging.getLogger("sglang_subgw.engine")

_FRAMES_PER_WAKE_UP: Final = 256
_LOOK_SECONDS: Final = 0.1
_LINGER_MS: Final = 1000
_FOR_THE_ROUTER: Final = re.compile(
    b"TokenizerWorkerRegistrationReq|PauseGenerationReqInput|ContinueGenerationReqInput"
)
_HEAD_BYTES: Final = 256
"""A message's kind stands at its beginning. A client's text may be there too: what only looks like one of the router's
own is decoded and sent on, as every message is by SGLang."""
_PICKLE: Final = b"\x80"
_END_OF_PICKLE: Final = b"."
_ARRAYS: Final = frozenset((*range(0x90, 0xA0), 0xDC, 0xDD))
"""First bytes of a msgpack array."""


class Forwarder:
    """Moves frames between two sockets on one event loop, and keeps aside those that the router must see."""

    def __init__(self, source: Any, target: Any, loop: asyncio.AbstractEventLoop) -> None:
        self.dropped = 0
        """Frames that are no message."""
        self._source: zmq.Socket[bytes] = zmq.Socket.shadow(source.underlying)
        self._target: zmq.Socket[bytes] = zmq.Socket.shadow(target.underlying)
        self._owned = source
        self._loop = loop
        self._seldom = Seldom(log)
        self._kept: deque[bytes] = deque()
        self._news = asyncio.Event()
        self._fd = int(self._source.fd)
        loop.add_reader(self._fd, self._forward)
        # The descriptor only tells of changes: what has already arrived must be looked for.
        loop.call_soon(self._forward)

    async def recv(self, flags: int = 0) -> bytes:
        """The next frame for the router."""
        while not self._kept:
            self._news.clear()
            await self._news.wait()
        return self._kept.popleft()

    async def recv_pyobj(self, flags: int = 0) -> Any:
        """The next object for the router; what can't be read is dropped."""
        while True:
            frame = await self.recv()
            try:
                return pickle.loads(frame)
            except Exception as exc:  # A pickle's opcodes can raise anything.
                self._drop(frame, exc)

    def close(self, linger: int | None = None) -> None:
        """Stop, and close the source."""
        self._loop.remove_reader(self._fd)
        self._owned.close(linger=linger)

    def _forward(self) -> None:
        receive, send = self._source.recv, self._target.send
        for _ in range(_FRAMES_PER_WAKE_UP):
            try:
                frame = receive(zmq.NOBLOCK)
            except zmq.Again:
                return
            if not _is_message(frame):
                self._drop(frame, "it is neither a pickle nor a msgpack array")
            elif _FOR_THE_ROUTER.search(frame, 0, _HEAD_BYTES):
                self._kept.append(frame)
                self._news.set()
            else:
                send(frame)
        self._loop.call_soon(self._forward)

    def _drop(self, frame: bytes, reason: object) -> None:
        self.dropped += 1
        self._seldom.error("The router dropped a frame of %d bytes: %s.", len(frame), reason)


@contextmanager
def forwarding_router() -> Iterator[list[Any]]:
    """For an engine's start: its router forwards frames; it is in the list also if the engine fails afterwards."""
    from sglang.srt.entrypoints import engine

    stock = engine.MultiTokenizerRouter
    started: list[Any] = []

    class ForwardingRouter(stock):  # type: ignore[misc, valid-type]
        """SGLang's router, which gets from its workers only what it must act on."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            started.append(self)

        async def router_worker_obj(self) -> None:
            source: Any = self.receive_from_worker  # type: ignore[has-type]
            self.receive_from_worker = Forwarder(source, self.send_to_scheduler, asyncio.get_running_loop())
            await super().router_worker_obj()

    engine.MultiTokenizerRouter = ForwardingRouter
    try:
        yield started
    finally:
        engine.MultiTokenizerRouter = stock


def forward_from_now_on(router: Any, endpoint: str, own_worker: str) -> None:
    """Let SGLang's router, which runs already, forward frames as well, for as long as it lives.

    `endpoint` is where it hears from workers, `own_worker` one of them that it knows. Raises EngineStartError for a
    router that has ended. Safe to call twice.
    """
    if isinstance(router.receive_from_worker, Forwarder):
        return
    socket = router.receive_from_worker
    taken_over = router.receive_from_worker = _TakenOver(router)
    # It waits for the socket's next frame, and looks where to wait for the one after that when it has come.
    _register_again(endpoint, own_worker)
    while not taken_over.done.wait(_LOOK_SECONDS):
        if router._task.done() or not router._thread.is_alive():
            router.receive_from_worker = socket
            raise EngineStartError("The router of this Engine has ended: no request reaches its scheduler any more.")


class _TakenOver:
    """In the place of a router's socket until the router reads it, on its loop and with nothing else reading it."""

    def __init__(self, router: Any) -> None:
        self.done = threading.Event()
        self._router = router
        self._source = router.receive_from_worker

    async def recv(self, flags: int = 0) -> bytes:
        return await self._forwarder().recv(flags)

    async def recv_pyobj(self, flags: int = 0) -> Any:
        return await self._forwarder().recv_pyobj(flags)

    def _forwarder(self) -> Forwarder:
        loop = asyncio.get_running_loop()
        forwarder = Forwarder(self._source, self._router.send_to_scheduler, loop)
        self._router.receive_from_worker = forwarder
        self.done.set()
        return forwarder


def _register_again(endpoint: str, worker: str) -> None:
    """A frame that changes nothing."""
    from sglang.srt.managers.io_struct import TokenizerWorkerRegistrationReq, sock_send

    with zmq.Context() as context, context.socket(zmq.PUSH) as socket:
        socket.linger = _LINGER_MS
        socket.connect(endpoint)
        sock_send(socket, TokenizerWorkerRegistrationReq(worker_ipc_name=worker))


def _is_message(frame: bytes) -> bool:
    if frame[:1] == _PICKLE:
        return frame[-1:] == _END_OF_PICKLE
    return bool(frame) and frame[0] in _ARRAYS
