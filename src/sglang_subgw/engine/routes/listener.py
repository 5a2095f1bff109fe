"""Serves the engine routes: uvicorn in a thread of the engine's process, apart from every other loop."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from collections.abc import Sequence
from typing import Final

import uvicorn

from ..engine_loop import EngineLoop
from .address import AdminSocket
from .application import Application
from .execute import Executor
from .resolve import Method

log = logging.getLogger("sglang_subgw.engine")

_LAST_SECONDS: Final = 5
"""So long may calls take that still run at the end."""


class AdminListener:
    """Serves from `start` to `close`."""

    def __init__(self, methods: Sequence[Method], loop: EngineLoop, sock: AdminSocket, *, max_body_bytes: int) -> None:
        self.url = sock.url
        self._socket = sock
        application = Application(methods, Executor(loop), max_body_bytes=max_body_bytes, is_loopback=sock.is_loopback)
        self._server = _Server(
            uvicorn.Config(
                application,
                ws="none",
                lifespan="off",
                log_config=None,
                log_level="warning",
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_graceful_shutdown=_LAST_SECONDS,
            )
        )
        self._thread = threading.Thread(target=self._run, name="subgw-admin", daemon=True)

    def start(self) -> None:
        """Listen."""
        self._thread.start()
        self._server.up.wait()

    def close(self) -> None:
        """End it, wait for its thread, and close the socket. Safe to call twice."""
        self._server.should_exit = True
        if self._thread.ident is not None:
            self._thread.join()
        self._socket.close()

    def _run(self) -> None:
        try:
            asyncio.run(self._server.serve(sockets=[self._socket.sock]))
        except Exception:
            log.exception("The admin listener has ended.")
        finally:
            self._server.up.set()


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.up = threading.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """uvicorn's; after it connections are accepted."""
        await super().startup(sockets)
        self.up.set()
