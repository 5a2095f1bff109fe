"""An ASGI extension of the shard's server: what `send` and `receive` make dearer than it is.

uvicorn's `send` is a coroutine, for every part of a body. A stream's parts come from the callback that receives the
engine's outputs: they are framed here as uvicorn frames them, and given to the transport at once. A short response is
written once, not twice, and a client that leaves is told of by a call, with no task that waits for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


class Direct:
    """`http.core.direct.DirectSend`, by the insides of uvicorn's cycle of one request."""

    __slots__ = ("send",)

    def __init__(self, send: Any) -> None:
        self.send = send
        """The server's own: where something has wrapped it, the body must go through the wrapper."""

    def body(self) -> DirectBody:
        """The body of the response, which `send` has begun and will end."""
        return DirectBody(self.send.__self__)

    @contextmanager
    def corked(self) -> Iterator[None]:
        """What `send` writes within this goes out as one."""
        cycle = self.send.__self__
        transport = cycle.transport
        cycle.transport = corked = _Corked(transport)
        try:
            yield
        finally:
            cycle.transport = transport
            corked.flush()

    def on_gone(self, callback: Callable[[], None] | None) -> None:
        """Call back, once and at once if it has happened, when the client has left; None ends that."""
        cycle = self.send.__self__
        protocol = cycle.on_response.__self__
        protocol.on_gone = callback
        if callback is None:
            return
        # A long body may have stopped the reading, by which the end of the connection is noticed.
        cycle.flow.resume_reading()
        if cycle.disconnected:
            protocol.on_gone = None
            callback()


class _Corked:
    """A transport that keeps what is written until it is flushed or closed."""

    __slots__ = ("_parts", "_transport")

    def __init__(self, transport: Any) -> None:
        self._transport = transport
        self._parts: list[bytes] = []

    def write(self, data: bytes) -> None:
        self._parts.append(data)

    def flush(self) -> None:
        if self._parts:
            self._transport.write(b"".join(self._parts))
            self._parts.clear()

    def close(self) -> None:
        self.flush()
        self._transport.close()

    def is_closing(self) -> bool:
        closing: bool = self._transport.is_closing()
        return closing


class DirectBody:
    """A response's body between its start and its last part."""

    __slots__ = ("_chunked", "_cycle", "_flow", "_protocol", "_transport")

    def __init__(self, cycle: Any) -> None:
        self._cycle = cycle
        self._flow = cycle.flow
        self._transport = cycle.transport
        self._protocol = cycle.on_response.__self__
        # h11's cycle leaves the framing to h11: chunks for whoever speaks HTTP/1.1.
        self._chunked = getattr(cycle, "chunked_encoding", cycle.scope["http_version"] == "1.1")

    @property
    def paused(self) -> bool:
        """The client reads more slowly than it is written to; `on_writable` tells when it has caught up."""
        paused: bool = self._flow.write_paused
        return paused

    def write(self, data: bytes) -> None:
        """Send a part of the body, not empty; nothing happens when the client is gone."""
        if not (self._cycle.disconnected or self._transport.is_closing()):
            self._transport.write(b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data)

    def on_writable(self, callback: Callable[[], None] | None) -> None:
        """Call back whenever the client has caught up."""
        self._protocol.on_writable = callback

    async def flush(self) -> None:
        """Nothing is kept here: `send` waits for a slow client."""
