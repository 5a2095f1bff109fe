"""A zmq socket that one coroutine reads from, on the event loop that it runs on."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import zmq

from ..errors import EngineUnavailable


class AsyncSocket:
    """Connected when made; `close` frees what it holds."""

    def __init__(self, kind: int, endpoint: str, *, limit: int = 0) -> None:
        """`limit` messages wait for the reader, 0 is any number."""
        self._loop = asyncio.get_running_loop()
        self._context = zmq.Context()
        self._socket: zmq.Socket[bytes] = self._context.socket(kind)
        self._socket.rcvhwm = limit
        self._socket.linger = 0
        self._socket.setsockopt(zmq.IPV6, "[" in endpoint)
        self._waiting: asyncio.Future[None] | None = None
        self._failure = ""
        try:
            self._socket.connect(endpoint)
        except zmq.ZMQError as exc:
            self.close()
            raise EngineUnavailable(f"{endpoint} can't be connected to: {zmq.strerror(exc.errno or 0)}.") from exc

    def subscribe(self, topic: bytes) -> None:
        """Of a SUB: want what begins with `topic`."""
        self._socket.subscribe(topic)

    def send(self, frames: Sequence[bytes]) -> None:
        """Queue a message; never blocks."""
        self._socket.send_multipart(frames, zmq.NOBLOCK)

    async def receive(self) -> list[bytes]:
        """The next message; raises EngineUnavailable once `fail` was called."""
        while True:
            if self._failure:
                raise EngineUnavailable(self._failure)
            try:
                return self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                await self._readable()

    def fail(self, reason: str) -> None:
        """End a read that waits, and those to come."""
        self._failure = reason
        self._wake()

    def close(self) -> None:
        """Free everything. Safe to call twice."""
        if not self._context.closed:
            self._socket.close()
            self._context.term()

    async def _readable(self) -> None:
        # Watched only while someone waits: a reader that takes its time would keep the loop turning.
        descriptor = int(self._socket.fd)
        self._waiting = self._loop.create_future()
        self._loop.add_reader(descriptor, self._wake)
        try:
            await self._waiting
        finally:
            self._waiting = None
            self._loop.remove_reader(descriptor)

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)
