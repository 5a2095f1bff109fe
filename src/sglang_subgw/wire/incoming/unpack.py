"""Plain msgpack in: msgspec where it loads, else a reader of its own, with the same results."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final

from ...errors import WireError

try:
    import msgspec
except ImportError:  # A free-threaded 3.13 has none.
    msgspec = None  # type: ignore[assignment]

_SCALARS: Final = {0xC0: None, 0xC2: False, 0xC3: True}
_NUMBERS: Final = {
    code: struct.Struct(f">{kind}") for code, kind in zip((0xCA, 0xCB, *range(0xCC, 0xD4)), "fdBHIQbhiq", strict=True)
}
_LENGTHS: Final = {
    code: struct.Struct(f">{kind}")
    for code, kind in zip((*range(0xC4, 0xC7), *range(0xD9, 0xE0)), "BHIBHIHIHI", strict=True)
}


def _unpack_msgspec(data: bytes) -> Any:
    try:
        return msgspec.msgpack.decode(data)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as exc:
        raise WireError(f"{len(data)} bytes of msgpack can't be read: {exc}") from exc


def unpack_plain(data: bytes) -> Any:
    """As `unpack`, without msgspec."""
    reader = _Reader(data)
    try:
        value = reader.value()
    except (struct.error, IndexError, KeyError, TypeError, UnicodeDecodeError, RecursionError) as exc:
        raise WireError(f"{len(data)} bytes of msgpack can't be read: {exc}") from exc
    if reader.at != len(data):
        raise WireError(f"{len(data)} bytes of msgpack can't be read: {len(data) - reader.at} bytes follow the value")
    return value


unpack: Callable[[bytes], Any] = unpack_plain if msgspec is None else _unpack_msgspec
"""The value in some msgpack without extension types; raises WireError for bytes that aren't one."""


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self.at = 0

    def value(self) -> Any:
        code = self._data[self.at]
        self.at += 1
        if code <= 0x7F:
            return code
        if code >= 0xE0:
            return code - 0x100
        if code in _SCALARS:
            return _SCALARS[code]
        if (number := _NUMBERS.get(code)) is not None:
            return self._number(number)
        if code <= 0x8F:
            return self._map(code & 0x0F)
        if code <= 0x9F:
            return self._array(code & 0x0F)
        if code <= 0xBF:
            return self._take(code & 0x1F).decode()
        length = self._number(_LENGTHS[code])
        if code <= 0xC6:
            return self._take(length)
        if code <= 0xDB:
            return self._take(length).decode()
        return self._array(length) if code <= 0xDD else self._map(length)

    def _number(self, number: struct.Struct) -> Any:
        (value,) = number.unpack_from(self._data, self.at)
        self.at += number.size
        return value

    def _take(self, length: int) -> bytes:
        taken = self._data[self.at : self.at + length]
        if len(taken) < length:
            raise IndexError("it ends too early")
        self.at += length
        return taken

    def _array(self, length: int) -> list[Any]:
        return [self.value() for _ in range(length)]

    def _map(self, length: int) -> dict[Any, Any]:
        return {self.value(): self.value() for _ in range(length)}
