"""uvicorn in a shard: it listens nowhere, connections are handed to it, and its slot shows its load."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable, Iterator
from typing import Any

import uvicorn

from ..config import GatewayConfig
from ..contract import Slot, Word
from .connection import Connections

_NOWHERE = logging.Logger("nowhere", logging.CRITICAL + 1)
_LAST_WORDS_SECONDS = 1.0
"""For the answers of requests that were just ended."""


class ShardServer(uvicorn.Server):
    """A uvicorn server whose connections come by `adopt`."""

    def __init__(self, app: Any, config: GatewayConfig, slot: Slot) -> None:
        self._connections = Connections(slot)
        super().__init__(
            uvicorn.Config(
                self._connections.counted(app),
                http=self._connections.protocol,
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

    def adopt(self, sock: socket.socket, *, idle: bool) -> None:
        """Serve a connection that was accepted elsewhere; an `idle` one has had requests there."""
        task = asyncio.get_running_loop().create_task(self._adopt(sock, idle))
        self._adopting.add(task)
        task.add_done_callback(self._adopting.discard)

    def listen(self, sock: socket.socket, backlog: int) -> None:
        """Accept from a listening socket of this shard's own."""
        task = asyncio.get_running_loop().create_task(self._listen(sock, backlog))
        self._adopting.add(task)
        task.add_done_callback(self._adopting.discard)

    def share(self, give_away: Callable[[int], bool], limit: int) -> None:
        """Give up to `limit` connections away, each once it is between two requests."""
        self._connections.move_on(give_away, limit)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """uvicorn's, but it listens nowhere, and a start-up that the application itself gave up is an error."""
        # Older versions return where newer ones exit.
        with contextlib.suppress(SystemExit):
            await super().startup(sockets or [])
        if self.lifespan.should_exit:
            raise RuntimeError("The application's own start-up failed; the log says why.")

    async def wait_started(self, serving: asyncio.Task[None]) -> None:
        """Until the application's own start-up is through; raises what ended `serving` before that."""
        while not self.started:
            if serving.done():
                serving.result()
                raise RuntimeError("The application ended while it started.")
            await asyncio.sleep(0.001)

    def give_up_start(self) -> None:
        """The start is stopped on purpose: what the application makes of it (a traceback, mostly) is no news."""
        lifespan: Any = getattr(self, "lifespan", None)
        if lifespan is not None:
            lifespan.logger = _NOWHERE

    async def retire(self, give_away: Callable[[int], bool], timeout: float) -> None:
        """Give every connection away once it is between two requests, then end `serve`; after `timeout` in any case."""
        self._stop_accepting()
        self._connections.move_on(give_away)
        deadline = asyncio.get_running_loop().time() + timeout + _LAST_WORDS_SECONDS
        while (self._adopting or self.server_state.connections) and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.01)
        self.config.timeout_graceful_shutdown = 1
        self.should_exit = True

    async def drain(self, timeout: float) -> None:
        """Let open requests finish, then end `serve`; connections without a request are closed."""
        self._stop_accepting()
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

    def make_protocol(self, *, idle: bool = False, handed_over: bool = True) -> asyncio.Protocol:
        """What serves one connection."""
        factory: Any = self.config.http_protocol_class
        protocol: Any = factory(config=self.config, server_state=self.server_state, app_state=self.lifespan.state)
        protocol.idle, protocol.handed_over = idle, handed_over
        made: asyncio.Protocol = protocol
        return made

    async def _listen(self, sock: socket.socket, backlog: int) -> None:
        server = await asyncio.get_running_loop().create_server(
            lambda: self.make_protocol(handed_over=False), sock=sock, backlog=backlog
        )
        if self.should_exit:
            server.close()
        else:
            self.servers.append(server)

    def _stop_accepting(self) -> None:
        for server in self.servers:
            server.close()
        self.servers.clear()

    async def _adopt(self, sock: socket.socket, idle: bool) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(lambda: self.make_protocol(idle=idle), sock)
        except OSError:
            # The client was gone before its connection got here.
            sock.close()
            self._slot.add(Word.CONNECTIONS_SEEN)
