"""Server-sent events as raw bytes: a stream is a status line, events and an end mark, each one ASGI message."""

from __future__ import annotations

from typing import Any, Final

from .exchange import Exchange, RawHeaders
from .jsonio import dumps

DONE: Final = b"data: [DONE]\n\n"
_HEADERS: Final[RawHeaders] = [(b"content-type", b"text/event-stream; charset=utf-8")]


async def start_events(exchange: Exchange) -> None:
    """Send the headers of an event stream."""
    await exchange.start(200, _HEADERS)


def event(value: Any) -> bytes:
    """One event that carries a JSON value."""
    return b"data: " + dumps(value) + b"\n\n"
