"""One event of a stream as it goes over the wire."""

from __future__ import annotations

import socket
from typing import Final

from ..errors import BenchError

_PATIENCE_SECONDS: Final = 30.0
_SKIPPED_EVENTS: Final = 8
"""The first ones differ from those that make up a stream."""


def sample_event(address: tuple[str, int], request: bytes) -> str:
    """An event from the middle of a stream, chunk framing and all; raises BenchError when there is none."""
    with socket.create_connection(address, timeout=_PATIENCE_SECONDS) as sock:
        sock.sendall(request)
        data = b""
        while data.count(b"\n\n") < _SKIPPED_EVENTS + 2:
            part = sock.recv(65536)
            if not part:
                break
            data += part
    _, _, body = data.partition(b"\r\n\r\n")
    events = body.split(b"\n\n\r\n")
    if len(events) <= _SKIPPED_EVENTS:
        raise BenchError(f"A stream of {address} can't be read: {data[:200]!r}")
    return (events[_SKIPPED_EVENTS] + b"\n\n\r\n").decode("latin-1")
