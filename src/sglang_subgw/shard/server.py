"""uvicorn in a shard: it listens nowhere, connections are handed to it, and its slot shows its load."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from typing import Any

import uvicorn

from ..config import GatewayConfig
from ..contract import Slot, Word

try:
    import httptools  # noqa: F401
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol as HttpProtocol
except ImportError:
    from uvicorn.protocols.http.h11_impl import H11Protocol as HttpProtocol  # type: ignore[assignment]


class ShardServer(uvicorn.Server):
    """A uvicorn server whose connections come by `adopt`."""

    def __init__(self, app: Any, config: GatewayConfig, slot: Slot) -> None:
        super().__init__(
            uvicorn.Config(
                _counted(app, slot),
                http=_counting_protocol(slot),
                ws="none",
                lifespan="auto",
                log_config=None,
                # uvicorn tells its own life at info; the gateway tells it already.
                log_level="warning" if config.log_level == "info" else config.log_level,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_keep_alive=int(config.keep_alive_seconds),
            )
        )
        self._slot = slot
        self._adopting: set[asyncio.Task[None]] = set()

    def adopt(self, sock: socket.socket) -> None:
        """Serve a connection that was accepted elsewhere."""
        task = asyncio.get_running_loop().create_task(self._adopt(sock))
        self._adopting.add(task)
        task.add_done_callback(self._adopting.discard)

    async def wait_started(self, serving: asyncio.Task[None]) -> None:
        """Until the application's own start-up is through; raises what ended `serving` before that."""
        while not self.started:
            if serving.done():
                serving.result()
                raise RuntimeError("The application ended while it started.")
            await asyncio.sleep(0.001)

    async def drain(self, timeout: float) -> None:
        """Let open requests finish, then end `serve`; connections without a request are closed."""
        deadline = asyncio.get_running_loop().time() + min(timeout, 0.5)
        # A connection that was accepted before the stop may have its first request on the way.
        while (self._adopting or self._slot.get(Word.FRESH)) and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.01)
        self.config.timeout_graceful_shutdown = max(1, round(timeout + 2))
        self.should_exit = True

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals belong to the gateway's main thread."""
        yield

    async def _adopt(self, sock: socket.socket) -> None:
        self._slot.add(Word.CONNECTIONS_SEEN)
        try:
            await asyncio.get_running_loop().connect_accepted_socket(self._make_protocol, sock)
        except OSError:
            # The client was gone before its connection got here.
            sock.close()

    def _make_protocol(self) -> asyncio.Protocol:
        factory: Any = self.config.http_protocol_class
        protocol: asyncio.Protocol = factory(
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )
        return protocol


def _counting_protocol(slot: Slot) -> type[asyncio.Protocol]:
    class CountingProtocol(HttpProtocol):
        """uvicorn's protocol, with the shard's open connections in its slot."""

        _fresh = False

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            slot.add(Word.CONNECTIONS)
            slot.add(Word.FRESH)
            self._fresh = True

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self._fresh and self.cycle is not None:
                # Later than the first step of the request's task, which counts the request itself.
                self.loop.call_soon(self._not_fresh)

        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            self._not_fresh()
            slot.add(Word.CONNECTIONS, -1)

        def _not_fresh(self) -> None:
            if self._fresh:
                self._fresh = False
                slot.add(Word.FRESH, -1)

    return CountingProtocol


def _counted(app: Any, slot: Slot) -> Any:
    async def counted(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await app(scope, receive, send)
            return
        slot.add(Word.HTTP_REQUESTS)
        try:
            await app(scope, receive, send)
        finally:
            slot.add(Word.HTTP_REQUESTS, -1)

    return counted
