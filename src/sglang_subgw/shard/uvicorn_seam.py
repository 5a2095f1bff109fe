"""Whether the installed uvicorn is as a shard's server needs it, which is more than uvicorn's documentation promises.

Requests are answered, by all that goes below ASGI, over a connection that leads nowhere: whatever uvicorn has renamed
or does in another way shows before there are clients.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from types import CodeType
from typing import Any, Final

import uvicorn

from ..config import GatewayConfig
from ..contract import SLOT_BYTES, Slot, Word
from ..errors import DependencyError
from ..http.core.exchange import Exchange
from .server import ShardServer

_READ_BY_SERVER: Final = {
    *("capture_signals", "lifespan", "server_state", "servers", "should_exit", "started", "startup"),
    "timeout_graceful_shutdown",
}
"""What ShardServer overrides or sets, which nobody would miss here if uvicorn looked at something else."""
_REQUEST: Final = b"POST / HTTP/1.1\r\nhost: shard\r\ncontent-length: 0\r\n\r\n"
_OPEN: Final = (Word.CONNECTIONS, Word.FRESH, Word.HTTP_REQUESTS)


async def check_uvicorn(config: GatewayConfig) -> None:
    """Answer requests as a shard with this configuration does; raises DependencyError with what isn't as it was."""
    try:
        read = {name for member in vars(uvicorn.Server).values() for name in _names(getattr(member, "__code__", None))}
        missing = _READ_BY_SERVER - read
        _need(not missing, f"its Server knows no {', '.join(sorted(missing))}")
        with socket.socket() as sock:
            await _serve(config, sock)
    except Exception as exc:
        told = f"uvicorn {uvicorn.__version__} is not as a shard needs it: {exc}."
        raise DependencyError(told, hint=f"pip install '{_supported()}' brings one that is.") from exc


class _Client(asyncio.Transport):
    """Keeps what is written to it."""

    def __init__(self, sock: socket.socket) -> None:
        super().__init__({"socket": sock})
        self.written: list[bytes] = []
        self.closing = False

    def write(self, data: Any) -> None:
        self.written.append(bytes(data))

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        self.closing = True

    abort = close

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


async def _serve(config: GatewayConfig, sock: socket.socket) -> None:
    asked: list[Exchange] = []
    answered = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        asked.append(Exchange(scope, receive, send, []))
        # A stop of the shard cancels it, which uvicorn would log as an error of the application's.
        with contextlib.suppress(asyncio.CancelledError):
            await answered.wait()

    slot = Slot(memoryview(bytearray(SLOT_BYTES)).cast("q"))
    server = ShardServer(app, config, slot)
    server.config.load()
    server.lifespan = server.config.lifespan_class(server.config)

    def connected() -> tuple[Any, _Client]:
        protocol, client = server.make_protocol(), _Client(sock)
        protocol.connection_made(client)
        return protocol, client

    async def request(protocol: Any) -> Exchange:
        protocol.data_received(_REQUEST)
        for _ in range(10):
            await asyncio.sleep(0)
        _need(asked, "a request does not reach the application")
        exchange = asked.pop()
        _need(exchange.direct, "`send` is not the one that the application is called with")
        return exchange

    def give_away(fd: int) -> bool:
        heard.append(f"given {fd}")
        return True

    heard: list[str] = []
    try:
        protocol, client = connected()
        exchange = await request(protocol)
        await exchange.respond(200, b"whole")
        _need(client.written and client.written[-1].endswith(b"\r\n\r\nwhole"), "a response is not written as one")
        exchange = await request(protocol)
        await exchange.start(200)
        body = exchange.body()
        protocol.pause_writing()
        _need(body.paused, "a slow client is not noticed")
        body.on_writable(lambda: heard.append("writable"))
        protocol.resume_writing()
        _need(heard and not body.paused, "a client that has caught up is not noticed")
        body.write(b"part")
        await exchange.end(b"end")
        framed = b"\r\n\r\n4\r\npart\r\n3\r\nend\r\n0\r\n\r\n"
        _need(b"".join(client.written).endswith(framed), "a stream is framed in another way")
        server.share(give_away, 1)
        _need(
            heard[-1] == f"given {sock.fileno()}" and client.closing, "a connection between two requests can't move on"
        )
        protocol.connection_lost(None)

        protocol, client = connected()
        exchange = await request(protocol)
        await exchange.start(200)
        body = exchange.body()
        assert exchange.direct is not None
        exchange.direct.on_gone(lambda: heard.append("gone"))
        before = len(client.written)
        protocol.connection_lost(ConnectionResetError())
        body.write(b"late")
        _need(heard[-1] == "gone" and len(client.written) == before, "a client that leaves is not noticed")
    except BaseException:
        # uvicorn would log those that have no answer.
        for connection in tuple(server.server_state.connections):
            connection.connection_lost(None)
        raise
    finally:
        answered.set()
    for _ in range(10):
        await asyncio.sleep(0)
    left = [word.name.lower() for word in _OPEN if slot.get(word)]
    _need(not (left or server.server_state.connections), f"a connection that has ended still counts: {left}")


def _need(condition: object, otherwise: str) -> None:
    if not condition:
        raise RuntimeError(otherwise)


def _names(code: object) -> Iterator[str]:
    """The attributes and globals that a function names, with those in it."""
    if isinstance(code, CodeType):
        yield from code.co_names
        for constant in code.co_consts:
            yield from _names(constant)


def _supported() -> str:
    from importlib.metadata import PackageNotFoundError, requires

    try:
        return next(each for each in requires("sglang-subgw") or () if each.startswith("uvicorn"))
    except (PackageNotFoundError, StopIteration):
        return "uvicorn"
