"""uvicorn's protocol with the shard's load in its slot, and connections that can move on to another shard."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Any

from ..contract import Slot, Word
from ..http.core.direct import EXTENSION
from .direct_send import Direct

try:
    import httptools  # noqa: F401
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol as HttpProtocol
except ImportError:
    from uvicorn.protocols.http.h11_impl import H11Protocol as HttpProtocol  # type: ignore[assignment]


class Connections:
    """The open connections of one shard."""

    def __init__(self, slot: Slot) -> None:
        self._slot = slot
        self.open: set[Any] = set()
        self._give_away: Callable[[int], bool] | None = None
        self._to_give: float = 0
        self.protocol = _protocol_class(self, slot)
        """The class for uvicorn's `http` option."""

    def counted(self, app: Any) -> Any:
        """The ASGI application, with its requests in progress in the slot."""
        slot = self._slot

        async def counted(scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] != "http":
                await app(scope, receive, send)
                return
            slot.add(Word.HTTP_REQUESTS)
            scope.setdefault("extensions", {})[EXTENSION] = Direct(send)
            try:
                await app(scope, receive, send)
            finally:
                slot.add(Word.HTTP_REQUESTS, -1)

        return counted

    def move_on(self, give_away: Callable[[int], bool], limit: float = math.inf) -> None:
        """From now on, give connections away as soon as they are between two requests: `limit` more of them.

        `give_away` sends a copy of the descriptor and says whether somebody else has it now.
        """
        self._give_away = give_away
        self._to_give += limit
        for connection in list(self.open):
            connection.move_if_idle()

    @property
    def moving(self) -> bool:
        """Some are to be given away."""
        return self._to_give > 0

    def give(self, fd: int) -> bool:
        """Give one away; True when somebody else has it now."""
        assert self._give_away is not None
        given = self._give_away(fd)
        self._to_give -= given
        return given


def _protocol_class(connections: Connections, slot: Slot) -> type[asyncio.Protocol]:

    class ShardProtocol(HttpProtocol):
        """One client's connection."""

        handed_over = True
        """It was accepted by the gateway, which counts those that are on their way."""
        on_writable: Callable[[], None] | None = None
        """A stream waits for its client to catch up."""
        on_gone: Callable[[], None] | None = None
        """A request in progress wants to know when its client leaves."""
        idle = False
        """It has had a request elsewhere, and may never have one here."""
        _counted = True
        _fresh = False
        _between = True
        """No byte of a request has been read that is not answered yet."""

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            connections.open.add(self)
            slot.add(Word.CONNECTIONS)
            if not self.idle:
                slot.add(Word.FRESH)
                self._fresh = True
            # Last: a connection that counts nowhere for a moment draws the next ones to this shard.
            if self.handed_over:
                slot.add(Word.CONNECTIONS_SEEN)
            self.move_if_idle()

        def data_received(self, data: bytes) -> None:
            self._between = False
            super().data_received(data)
            if self._fresh and self.cycle is not None:
                # Later than the first step of the request's task, which counts the request itself.
                self.loop.call_soon(self._not_fresh)

        def on_response_complete(self) -> None:
            super().on_response_complete()
            self._between = self._nothing_begun()
            if connections.moving:
                # The response's last bytes may still be on their way out of the transport.
                self.loop.call_soon(self.move_if_idle)

        def resume_writing(self) -> None:
            super().resume_writing()
            if self.on_writable is not None:
                self.on_writable()

        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            connections.open.discard(self)
            self._not_fresh()
            if self._counted:
                slot.add(Word.CONNECTIONS, -1)
            if self.on_gone is not None:
                self.on_gone()

        def move_if_idle(self) -> None:
            """Give the connection to another shard if there is nothing of it that only this one knows."""
            transport = self.transport
            if not connections.moving or not self._between or transport.is_closing():
                return
            if transport.get_write_buffer_size():
                self.loop.call_later(0.01, self.move_if_idle)
                return
            transport.pause_reading()
            # Before it is given: whoever gets it goes by how many each has.
            slot.add(Word.CONNECTIONS, -1)
            self._counted = False
            if connections.give(transport.get_extra_info("socket").fileno()):
                transport.abort()
            else:
                transport.resume_reading()
                slot.add(Word.CONNECTIONS)
                self._counted = True

        def _nothing_begun(self) -> bool:
            if hasattr(self, "conn"):
                return not self.conn.trailing_data[0]
            return not self.pipeline and self._complete

        # httptools tells where a message begins and ends; h11 keeps what it has not used yet.

        _complete = True

        def on_message_begin(self) -> None:
            self._complete = False
            super().on_message_begin()

        def on_message_complete(self) -> None:
            self._complete = True
            super().on_message_complete()

        def _not_fresh(self) -> None:
            if self._fresh:
                self._fresh = False
                slot.add(Word.FRESH, -1)

    return ShardProtocol
