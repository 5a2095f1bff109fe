"""A feeder's connection to a shard's PULL socket: ZMTP 3.0 (rfc.zeromq.org/spec/23), as PUSH, without security.

libzmq hands each message to a thread of its own, which costs a feeder as much as many a shard's work on it. Here all
messages of a step are one write.
"""

from __future__ import annotations

import socket
import struct
from typing import Final

_GREETING: Final = b"\xff\0\0\0\0\0\0\0\x01\x7f\x03\0" + b"NULL".ljust(20, b"\0") + bytes(32)
_READY: Final = b"\x05READY\x0bSocket-Type\0\0\0\x04PUSH"
_COMMAND: Final = 0x04
_LARGE: Final = 0x02
_HEAD: Final = struct.Struct(">BQ")
_BUFFER: Final = 1 << 20
"""Bytes, as far as the system allows: a feeder that waits for room is woken for each part."""
_SECONDS: Final = 10.0
"""How long a shard may take nothing."""


def framed(message: bytes | bytearray) -> bytearray:
    """A message as it is on the wire."""
    return bytearray(_HEAD.pack(_LARGE, len(message))) + message


HEAD_SIZE: Final = _HEAD.size
"""Where the message begins in that."""


class Line:
    """Connected when made; raises OSError when nobody who speaks the protocol is there."""

    def __init__(self, endpoint: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(_SECONDS)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER)
        try:
            self._socket.connect(endpoint.removeprefix("ipc://"))
            self._shake_hands()
        except BaseException:
            self.close()
            raise

    def write(self, messages: bytes | bytearray) -> None:
        """Send messages that are framed; raises OSError when the shard is gone, or takes nothing any more."""
        self._socket.sendall(messages)

    def close(self) -> None:
        """Hang up. Safe to call twice."""
        self._socket.close()

    def _shake_hands(self) -> None:
        self._socket.sendall(_GREETING + bytes((_COMMAND, len(_READY))) + _READY)
        greeting = self._read(len(_GREETING))
        # Its version, and the mechanism that it insists on.
        if greeting[10] < _GREETING[10] or greeting[12:32] != _GREETING[12:32]:
            raise ConnectionError(f"it greets with {greeting[:32]!r}")
        flags, size = self._read(2)
        ready = self._read(size)
        if flags != _COMMAND or not ready.startswith(_READY[:6]):
            raise ConnectionError(f"it says {ready!r}")

    def _read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            part = self._socket.recv(size - len(data))
            if not part:
                raise ConnectionError("it hung up")
            data += part
        return data
