"""Plain msgpack out, also where msgspec can't be had."""

from __future__ import annotations

import struct
from typing import Any


def pack(value: Any) -> bytes:
    """A plain value as msgpack; integers and lengths in their shortest form."""
    match value:
        case None:
            return b"\xc0"
        case bool():
            return b"\xc3" if value else b"\xc2"
        case int():
            return _integer(value)
        case float():
            return struct.pack(">Bd", 0xCB, value)
        case str():
            data = value.encode()
            return _length(len(data), 0xA0, 31, b"\xd9\xda\xdb") + data
        case bytes():
            return _length(len(value), 0, -1, b"\xc4\xc5\xc6") + value
        case list() | tuple():
            return _length(len(value), 0x90, 15, b"\0\xdc\xdd") + b"".join(map(pack, value))
        case dict():
            items = b"".join(pack(key) + pack(item) for key, item in value.items())
            return _length(len(value), 0x80, 15, b"\0\xde\xdf") + items
    raise TypeError(f"{type(value).__name__} has no plain msgpack")


def _integer(value: int) -> bytes:
    if -32 <= value < 128:
        return struct.pack("b" if value < 0 else "B", value)
    kinds, code = ("BHIQ", 0xCC) if value >= 0 else ("bhiq", 0xD0)
    for step, kind in enumerate(kinds):
        bits = 8 << step
        if -(1 << bits - 1) <= value < 1 << bits:
            return struct.pack(f">B{kind}", code + step, value)
    raise OverflowError(f"{value} has no msgpack")


def _length(length: int, short: int, short_limit: int, codes: bytes) -> bytes:
    if length <= short_limit:
        return bytes((short | length,))
    for code, kind in zip(codes, "BHI", strict=True):
        if code and length < 1 << 8 * struct.calcsize(f">{kind}"):
            return struct.pack(f">B{kind}", code, length)
    raise OverflowError(f"{length} is too long for msgpack")
