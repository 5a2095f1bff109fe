"""A process that only writes: the same bytes to the same number of sockets, once a step. What nobody can be below."""

from __future__ import annotations

import asyncio
import contextlib
import select
import socket
import sys
import time
from typing import Any, Final

from ...engine.scripted.pace import Pace
from ..system.child import Parent

HEAD: Final = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
_BACKLOG: Final = 4096
_IDLE_SECONDS: Final = 0.05


def write_with_send(parent: Parent, listener: socket.socket, pace: Pace, event: bytes) -> None:
    """One `socket.send` per stream and step, and no event loop."""
    clients: dict[int, socket.socket] = {}
    streams: set[socket.socket] = set()
    poll = select.epoll()
    poll.register(listener, select.EPOLLIN)
    poll.register(sys.stdin.fileno(), select.EPOLLIN | select.EPOLLHUP)
    next_step = time.monotonic()
    while True:
        for fd, _ in poll.poll(max(0.0, next_step - time.monotonic()) if streams else -1):
            if fd == listener.fileno():
                sock, _ = listener.accept()
                clients[sock.fileno()] = sock
                poll.register(sock, select.EPOLLIN)
            elif fd == sys.stdin.fileno():
                return
            else:
                _begin(clients, streams, fd)
        if time.monotonic() >= next_step:
            next_step = max(next_step + pace.seconds, time.monotonic())
            for sock in streams:
                with contextlib.suppress(OSError):
                    sock.send(event)


def _begin(clients: dict[int, socket.socket], streams: set[socket.socket], fd: int) -> None:
    """Answer a request, whose content is of no interest, or let go of a client that hung up."""
    sock = clients[fd]
    try:
        data = sock.recv(1 << 16)
    except OSError:
        data = b""
    if data:
        sock.send(HEAD)
        streams.add(sock)
    else:
        del clients[fd]
        streams.discard(sock)
        sock.close()


def write_with_uvloop(parent: Parent, listener: socket.socket, pace: Pace, event: bytes) -> None:
    """One `transport.write` per stream and step, on uvloop."""
    import uvloop

    async def serve() -> None:
        loop = asyncio.get_running_loop()
        transports: set[Any] = set()
        ended = loop.create_future()

        class Stream(asyncio.Protocol):
            def connection_made(self, transport: Any) -> None:
                self.transport = transport

            def data_received(self, data: bytes) -> None:
                self.transport.write(HEAD)
                transports.add(self.transport)

            def connection_lost(self, exc: Exception | None) -> None:
                transports.discard(self.transport)

        def step(due: float) -> None:
            for transport in transports:
                transport.write(event)
            due = max(due + (pace.seconds if transports else _IDLE_SECONDS), loop.time())
            loop.call_at(due, step, due)

        loop.add_reader(sys.stdin.fileno(), ended.cancel)
        server = await loop.create_server(Stream, sock=listener)
        step(loop.time())
        with contextlib.suppress(asyncio.CancelledError):
            await ended
        server.close()
        for transport in list(transports):
            transport.abort()

    uvloop.run(serve())


WRITERS: Final = {"send": write_with_send, "uvloop": write_with_uvloop}


def main() -> int:
    """Write until the bench closes."""
    parent = Parent()
    settings = parent.settings()
    with Pace(settings["pace"]) as pace, socket.create_server(("127.0.0.1", 0), backlog=_BACKLOG) as listener:
        parent.say(address=listener.getsockname())
        WRITERS[settings["writer"]](parent, listener, pace, settings["event"].encode("latin-1"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
