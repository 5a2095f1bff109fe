"""The server's extension, on uvicorn's own cycles: whole responses in one write, and clients that leave."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from sglang_subgw.http.core.direct import EXTENSION
from sglang_subgw.http.core.disconnect import UntilDisconnect
from sglang_subgw.http.core.exchange import ClientGone, Exchange
from sglang_subgw.shard.direct_send import Direct


class Transport:
    """Keeps what is written."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.closed = False

    def write(self, data: bytes) -> None:
        assert not self.closed
        self.written.append(data)

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed


class Flow:
    """A client that keeps up."""

    write_paused = False
    resumed = 0

    def resume_reading(self) -> None:
        self.resumed += 1


class Protocol:
    """What a connection knows of its request."""

    on_writable = on_gone = None

    def on_response_complete(self) -> None:
        pass


def cycle(name: str, transport: Transport) -> Any:
    """uvicorn's own."""
    common: dict[str, Any] = {
        "scope": {"type": "http", "method": "GET", "headers": [], "http_version": "1.1"},
        "transport": transport,
        "flow": Flow(),
        "logger": None,
        "access_logger": None,
        "access_log": False,
        "default_headers": [],
        "message_event": asyncio.Event(),
        "on_response": Protocol().on_response_complete,
    }
    if name == "httptools":
        module = pytest.importorskip("uvicorn.protocols.http.httptools_impl", exc_type=ImportError)
        return module.RequestResponseCycle(**common, expect_100_continue=False, keep_alive=True)
    import h11
    from uvicorn.protocols.http.h11_impl import RequestResponseCycle

    connection = h11.Connection(h11.SERVER)
    connection.receive_data(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
    while connection.next_event() is not h11.NEED_DATA and connection.their_state is not h11.DONE:
        pass
    return RequestResponseCycle(**common, conn=connection)


def exchange(of: Any) -> Exchange:
    send = of.send
    return Exchange({**of.scope, "extensions": {EXTENSION: Direct(send)}}, of.receive, send, [])


IMPLEMENTATIONS = ["httptools", "h11"]


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_a_whole_response_is_one_write(name: str) -> None:
    async def run() -> None:
        transport = Transport()
        await exchange(cycle(name, transport)).respond(200, b"hello")
        (data,) = transport.written
        assert data.startswith(b"HTTP/1.1 200 OK\r\n")
        assert data.endswith(b"\r\n\r\nhello")
        assert not transport.closed

    asyncio.run(run())


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_a_response_that_closes_is_written_before_that(name: str) -> None:
    async def run() -> None:
        transport = Transport()
        await exchange(cycle(name, transport)).respond(503, b"bye", [(b"connection", b"close")])
        assert b"".join(transport.written).endswith(b"bye")
        assert transport.closed

    asyncio.run(run())


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_a_streamed_body_is_framed_as_the_server_frames_it(name: str) -> None:
    async def run(direct: bool) -> bytes:
        transport = Transport()
        one = exchange(cycle(name, transport))
        await one.start(200)
        if direct:
            body = one.body()
            assert not body.paused
            body.write(b"hello")
            body.write(b"x" * 300)
        else:
            await one.write(b"hello")
            await one.write(b"x" * 300)
        await one.end(b"end")
        return b"".join(transport.written)

    assert asyncio.run(run(True)) == asyncio.run(run(False))


def test_nothing_is_written_to_a_client_that_is_gone() -> None:
    async def run() -> None:
        transport = Transport()
        one = cycle("h11", transport)
        it = exchange(one)
        await it.start(200)
        body, before = it.body(), list(transport.written)
        one.disconnected = True
        body.write(b"late")
        assert transport.written == before

    asyncio.run(run())


@pytest.mark.parametrize("already", [True, False])
def test_a_client_that_leaves_ends_the_work(already: bool) -> None:
    async def run() -> None:
        one = cycle("h11", Transport())
        protocol = one.on_response.__self__
        one.disconnected = already

        async def work() -> None:
            async with UntilDisconnect(exchange(one)):
                await asyncio.Event().wait()

        task = asyncio.create_task(work())
        await asyncio.sleep(0)
        if not already:
            protocol.on_gone()
        with pytest.raises(ClientGone):
            await task
        assert protocol.on_gone is None
        assert one.flow.resumed == 1, "or the end of the connection would not be noticed"

    asyncio.run(run())


def test_a_client_that_stays_is_not_watched_afterwards() -> None:
    async def run() -> None:
        one = cycle("h11", Transport())
        async with UntilDisconnect(exchange(one)):
            assert one.on_response.__self__.on_gone is not None
        assert one.on_response.__self__.on_gone is None

    asyncio.run(run())
