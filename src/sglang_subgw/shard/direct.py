"""Writing to a client's socket without a task: an ASGI extension of the shard's server, for streamed bodies.

uvicorn's `send` is a coroutine, for every part of a body. A stream's parts come from the callback that receives the
engine's outputs: they are framed here as uvicorn frames them, and given to the transport at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

EXTENSION: Final = "sglang_subgw.direct"
"""The key in the scope's `extensions`."""


class Direct:
    """The extension, for one response."""

    __slots__ = ("send",)

    def __init__(self, send: Any) -> None:
        self.send = send
        """The server's own: where something has wrapped it, the body must go through the wrapper."""

    def body(self) -> DirectBody:
        """The body of the response, which `send` has begun and will end."""
        return DirectBody(self.send.__self__)


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
