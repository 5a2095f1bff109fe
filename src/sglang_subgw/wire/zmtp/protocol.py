"""ZMTP 3, what zmq sockets say to each other: greeting, READY, messages; https://rfc.zeromq.org/spec/23.

A shard speaks it itself. Behind libzmq's API each message wakes a second thread, which wakes the first: a fifth of what
a token cost where each has a message of its own.
"""

from __future__ import annotations

from typing import Final

from ...errors import WireError

_GREETING_BYTES: Final = 64
_MAJOR_AT: Final = 10
_MECHANISM: Final = slice(12, 32)
_NULL: Final = b"NULL".ljust(20, b"\0")
_GREETING: Final = (b"\xff\0\0\0\0\0\0\0\0\x7f\x03\0" + _NULL).ljust(_GREETING_BYTES, b"\0")
_LONG: Final = 2
_COMMAND: Final = 4
_CONTEXT: Final = slice(2, 18)
"""Of a PING, after the time that it gives; what is longer may be cut off."""
_MOST: Final = 1 << 32
"""Bytes of a frame; SGLang's largest have tensors."""


def hello(kind: str) -> bytes:
    """What a socket of this kind ("PUSH" or "PULL") begins with."""
    return _GREETING + _command(b"READY", _property(b"Socket-Type", kind.encode()))


def head(size: int) -> bytes:
    """What comes before a message of `size` bytes."""
    return bytes((0, size)) if size < 256 else b"\x02" + size.to_bytes(8)


class Peer:
    """What one peer says, from its first byte on; `answers` are to be sent to it."""

    __slots__ = ("_greeted", "_pending", "_wanted", "_wants", "answers", "ready")

    def __init__(self, wanted: str) -> None:
        """`wanted` is the only kind of socket that it may have."""
        self.ready = False
        """It has said what it is: messages may come from it, and go to it."""
        self.answers = b""
        self._wanted = wanted.encode()
        self._greeted = False
        self._pending = bytearray()
        self._wants = 0
        """Bytes that must have come before anything can be read; what it has begun is in `_pending`."""

    def feed(self, data: memoryview) -> list[bytes]:
        """The messages that these bytes complete; raises WireError for a peer that can't be understood."""
        if not self._pending:
            return self._read(data)
        self._pending += data
        if len(self._pending) < self._wants:
            return []
        begun, self._pending = self._pending, bytearray()
        with memoryview(begun) as view:
            return self._read(view)

    def _read(self, data: memoryview) -> list[bytes]:
        self._wants = 0
        messages: list[bytes] = []
        at, end = 0, len(data)
        if not self._greeted:
            if not self._is_greeting(data):
                self._pending += data
                return messages
            self._greeted = True
            at = _GREETING_BYTES
        while at + 2 <= end:
            flags = data[at]
            if flags & _LONG:
                begin = at + 9
                if begin > end:
                    break
                size = int.from_bytes(data[at + 1 : begin])
                if size > _MOST:
                    raise WireError(f"a frame of {size} bytes")
            else:
                begin = at + 2
                size = data[at + 1]
            stop = begin + size
            if stop > end:
                self._wants = stop - at
                break
            if flags & _COMMAND:
                self._on_command(bytes(data[begin:stop]))
            elif self.ready:
                messages.append(bytes(data[begin:stop]))
            else:
                raise WireError("a message before READY")
            at = stop
        if at < end:
            self._pending += data[at:]
        return messages

    def _is_greeting(self, data: memoryview) -> bool:
        """False while it isn't whole; raises WireError as soon as it is no good."""
        # What is between the two bytes of the signature differs: a peer may speak older versions too.
        if data[0] != 0xFF or (len(data) > 9 and data[9] != 0x7F):
            raise WireError(f"no greeting of ZMTP but {bytes(data[:10])!r}")
        if len(data) > _MAJOR_AT and data[_MAJOR_AT] < 3:
            raise WireError(f"ZMTP {data[_MAJOR_AT]}, and not 3")
        if len(data) < _GREETING_BYTES:
            return False
        if (mechanism := bytes(data[_MECHANISM])) != _NULL:
            raise WireError(f"the security mechanism {mechanism.rstrip(bytes(1))!r}, and not NULL")
        return True

    def _on_command(self, body: bytes) -> None:
        if not body:
            raise WireError("a command without a name")
        name, rest = body[1 : 1 + body[0]], body[1 + body[0] :]
        if name == b"READY":
            kind = _properties(rest).get(b"socket-type")
            if kind != self._wanted:
                raise WireError(f"a socket of kind {kind!r}, and not {self._wanted!r}")
            self.ready = True
        elif name == b"PING":
            self.answers += _command(b"PONG", rest[_CONTEXT])
        elif name == b"ERROR":
            raise WireError(f"it refused: {rest[1:]!r}")


def _command(name: bytes, rest: bytes) -> bytes:
    body = bytes((len(name),)) + name + rest
    return bytes((_COMMAND, len(body))) + body


def _property(name: bytes, value: bytes) -> bytes:
    return bytes((len(name),)) + name + len(value).to_bytes(4) + value


def _properties(data: bytes) -> dict[bytes, bytes]:
    found = {}
    at = 0
    while at < len(data):
        name_end = at + 1 + data[at]
        value_at = name_end + 4
        value_end = value_at + int.from_bytes(data[name_end:value_at])
        if value_end > len(data):
            raise WireError("a READY that is cut off")
        found[data[at + 1 : name_end].lower()] = data[value_at:value_end]
        at = value_end
    return found
