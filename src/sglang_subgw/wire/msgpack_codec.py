"""Msgpack mode (SGLANG_USE_PICKLE_IPC=0): structs are arrays in the field order of the installed SGLang."""

from __future__ import annotations

import struct
from array import array
from typing import Any, Final

from ..contract import REQUIRED, WireFacts
from ..errors import WireError
from .incoming.tensor_values import tensor
from .incoming.unpickle import Reader
from .message import EnumMember, Message, Opaque, Struct
from .outgoing.fields import Checker

try:
    import msgspec
except ImportError:  # A free-threaded 3.13 has none.
    msgspec = None  # type: ignore[assignment]

_EXT_ARRAY: Final = 1
_EXT_TENSOR: Final = 2
_METADATA_SIZE: Final = struct.Struct(">I")
_UNTAGGED: Final = frozenset({"SamplingParams", "SessionParams", "WeightVersionSpan"})
_PICKLED_COLUMNS: Final = ("time_stats", "customized_info")


class MsgpackCodec:
    """One engine's msgpack arrays."""

    def __init__(self, wire: WireFacts) -> None:
        if msgspec is None:
            raise WireError(
                "The engine speaks msgpack, and msgspec doesn't load here.",
                hint="Start the engine without SGLANG_USE_PICKLE_IPC=0.",
            )
        self._checker = Checker(wire.schema)
        self._schema = wire.schema
        self._names = {kind: tuple(name for name, _ in fields) for kind, fields in wire.schema.items()}
        self._encoder = msgspec.msgpack.Encoder(enc_hook=_enc_hook)
        self._decoder = msgspec.msgpack.Decoder(ext_hook=_ext_hook)
        self._reader = Reader()

    def encode(self, kind: str, fields: dict[str, Any]) -> bytes:
        """A msgpack array that SGLang's decoder takes."""
        row = self._row(kind, fields)
        try:
            return self._encoder.encode(row)
        except (TypeError, ValueError, OverflowError) as exc:
            raise WireError(f"{kind} can't be encoded: {exc}") from exc

    def decode(self, frame: bytes) -> Message:
        """The message in a msgpack array; elements that the schema doesn't know are ignored."""
        try:
            row = self._decoder.decode(frame)
        except Exception as exc:  # The extension hook can raise anything on a broken payload.
            raise WireError(f"A frame of {len(frame)} bytes can't be read: {exc}") from exc
        if not isinstance(row, list) or not row or not isinstance(row[0], str) or row[0] not in self._names:
            raise WireError("A frame holds no message that this engine's schema names.")
        fields = dict(zip(self._names[row[0]], row[1:], strict=False))
        for name in _PICKLED_COLUMNS:
            if (wrapped := fields.get(name)) is not None:
                fields[name] = self._unwrapped(wrapped)
        if fields.get("weight_versions") is not None:
            fields["weight_versions"] = self._spans(fields["weight_versions"])
        return Message(row[0], fields)

    def _row(self, kind: str, fields: dict[str, Any]) -> list[Any]:
        self._checker.check(kind, fields)
        row: list[Any] = [] if kind in _UNTAGGED else [kind]
        left = len(fields)
        for name, default in self._schema[kind]:
            if not left:
                break
            if name in fields:
                row.append(self._value(fields[name]))
                left -= 1
            else:
                row.append(None if default == REQUIRED else default)
        return row

    def _value(self, value: Any) -> Any:
        if isinstance(value, Struct):
            return self._row(value.kind, value.fields)
        if type(value) is list and value and isinstance(value[0], Struct):
            return [self._row(item.kind, item.fields) for item in value]
        if isinstance(value, EnumMember):
            return value.value
        return value

    def _unwrapped(self, wrapped: Any) -> Any:
        if isinstance(wrapped, list) and len(wrapped) == 2 and isinstance(wrapped[1], bytes):
            return self._reader.loads(wrapped[1])
        return wrapped

    def _spans(self, value: Any) -> Any:
        """Spans by field name, whether they are one request's or a column of them."""
        if isinstance(value, list) and len(value) == 3 and isinstance(value[0], str):
            return Message("WeightVersionSpan", dict(zip(self._names["WeightVersionSpan"], value, strict=True)))
        return [self._spans(item) for item in value] if isinstance(value, list) else value


def _enc_hook(value: Any) -> Any:
    if isinstance(value, array):
        metadata = msgspec.msgpack.encode(value.typecode)
        return msgspec.msgpack.Ext(_EXT_ARRAY, _METADATA_SIZE.pack(len(metadata)) + metadata + value.tobytes())
    raise TypeError(f"{type(value).__name__} is not a value of the wire")


def _ext_hook(code: int, data: memoryview) -> Any:
    if code not in (_EXT_ARRAY, _EXT_TENSOR):
        return Opaque(code)
    (size,) = _METADATA_SIZE.unpack_from(data)
    start = _METADATA_SIZE.size + size
    metadata = msgspec.msgpack.decode(data[_METADATA_SIZE.size : start])
    if code == _EXT_TENSOR:
        shape, dtype, _device = metadata
        return tensor(shape, dtype, data[start:])
    values: array[Any] = array(metadata)
    values.frombytes(data[start:])
    return values
