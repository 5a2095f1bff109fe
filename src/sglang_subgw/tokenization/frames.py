"""Frames of the private tokenization socket: four bytes of length, then JSON; the same at both ends."""

from __future__ import annotations

import json
import socket
import struct
import time
from typing import Any, Final

MAX_FRAME: Final = 512 * 2**20
"""A body of the largest size that a gateway takes fits, in whatever way JSON must write it."""

_LENGTH: Final = struct.Struct(">I")
_PIECE: Final = 1 << 20


def send(sock: socket.socket, value: dict[str, Any], deadline: float | None = None) -> None:
    """Send one value; raises ValueError for one that can't be sent, with nothing sent, TimeoutError, or OSError."""
    # ASCII only: half a surrogate pair, which a client may send, has no UTF-8.
    body = json.dumps(value, separators=(",", ":")).encode()
    if len(body) > MAX_FRAME:
        raise ValueError(f"{len(body)} bytes are more than fit in a frame")
    sock.settimeout(_left(deadline))
    sock.sendall(_LENGTH.pack(len(body)) + body)


def receive(sock: socket.socket, deadline: float | None = None) -> dict[str, Any]:
    """The next value; raises EOFError at the end, ValueError for what isn't one, TimeoutError, or OSError."""
    (length,) = _LENGTH.unpack(_exactly(sock, _LENGTH.size, deadline))
    if length > MAX_FRAME:
        raise ValueError(f"a frame of {length} bytes is announced")
    value = json.loads(_exactly(sock, length, deadline))
    if not isinstance(value, dict):
        raise ValueError("a frame holds no object")
    return value


def _exactly(sock: socket.socket, size: int, deadline: float | None) -> bytes:
    data = bytearray()
    while len(data) < size:
        sock.settimeout(_left(deadline))
        piece = sock.recv(min(size - len(data), _PIECE))
        if not piece:
            raise EOFError("the connection ended")
        data += piece
    return bytes(data)


def _left(deadline: float | None) -> float | None:
    if deadline is None:
        return None
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left
