"""A shard's two sockets: PULL, bound to its own name, and PUSH to the engine's router."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
from collections.abc import Callable
from typing import Final

import zmq

from ..contract import WireFacts
from ..errors import EngineUnavailable, WireError
from ..storage import FREE_SPACE

_FRAMES_PER_WAKE_UP: Final = 256
_LINGER_MS: Final = 500
_IPC: Final = "ipc://"


class WorkerSocket:
    """Frames to and from the engine on one event loop; `close` leaves no socket file."""

    def __init__(self, wire: WireFacts, endpoint: str, loop: asyncio.AbstractEventLoop) -> None:
        self.endpoint = endpoint
        self._loop = loop
        self._on_frames: Callable[[list[bytes]], None] | None = None
        self._on_failure: Callable[[Exception], None] | None = None
        self._context = zmq.Context()
        self._pull = self._context.socket(zmq.PULL)
        self._push = self._context.socket(zmq.PUSH)
        for socket in (self._pull, self._push):
            # As SGLang's: nothing is ever dropped, and a stop doesn't wait for a router that is gone.
            socket.set_hwm(0)
            socket.linger = _LINGER_MS
        self._fd: int | None = None
        self._bound = False
        try:
            self._pull.bind(endpoint)
            self._bound = True
            self._push.connect(wire.worker_endpoint)
        except zmq.ZMQError as exc:
            self.close()
            reason = zmq.strerror(exc.errno or 0)
            raise WireError(
                f"The shard's sockets can't be opened ({endpoint}): {reason}.",
                hint=FREE_SPACE if exc.errno in (errno.ENOSPC, errno.EDQUOT) else "",
            ) from exc

    def start(
        self, on_frames: Callable[[list[bytes]], None], on_failure: Callable[[Exception], None] | None = None
    ) -> None:
        """Call `on_frames` with all that came by each wake-up from now on, or `on_failure`, once, when that is over."""
        self._on_frames, self._on_failure = on_frames, on_failure
        self._fd = int(self._pull.fd)
        self._loop.add_reader(self._fd, self._drain)
        # The descriptor only tells of changes: what has already arrived must be looked for.
        self._loop.call_soon(self._drain)

    def look(self) -> None:
        """Receive what a lost wake-up may have left; raises ZMQError when the socket can't be used any more."""
        if self._on_frames is not None and int(self._pull.get(zmq.EVENTS)) & zmq.POLLIN:
            self._drain()

    def send(self, frame: bytes) -> None:
        """Queue a frame for the router; never blocks."""
        try:
            self._push.send(frame, zmq.NOBLOCK)
        except zmq.ZMQError as exc:
            raise EngineUnavailable(f"The engine's router can't be reached: {exc}") from exc

    def close(self) -> None:
        """Stop, and unlink the shard's own socket file; safe to call twice."""
        if self._fd is not None:
            self._loop.remove_reader(self._fd)
            self._fd = None
        self._on_frames = None
        if self._context.closed:
            return
        self._pull.close()
        self._push.close()
        self._context.term()
        if self._bound and self.endpoint.startswith(_IPC):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.endpoint.removeprefix(_IPC))

    def _drain(self) -> None:
        try:
            self._receive()
        except Exception as exc:
            # The descriptor would not tell of what still waits: from here on the shard would be deaf.
            if self._fd is not None:
                self._loop.remove_reader(self._fd)
                self._fd = None
            self._on_frames = None
            if self._on_failure is None:
                raise
            self._on_failure(exc)

    def _receive(self) -> None:
        on_frames = self._on_frames
        if on_frames is None:
            return
        receive = self._pull.recv
        frames: list[bytes] = []
        try:
            while len(frames) < _FRAMES_PER_WAKE_UP:
                frames.append(receive(zmq.NOBLOCK))
            # There may be more; others on this loop have their turn first.
            self._loop.call_soon(self._drain)
        except zmq.Again:
            pass
        if frames:
            on_frames(frames)
