"""Frames of the engine's side: what SGLang's router would decode, and what its detokenizer would send."""

from __future__ import annotations

import io
import pickle
import struct
from array import array
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, Final, Protocol

from .schema import Member, mismatch, structs
from .structs import REBUILD, StandIn, StandInTimeStats, as_sglang, make, member, member_class, struct_class
from .tensors import MSGPACK_EXT, Tensor

try:
    import msgspec
except ImportError:  # a free-threaded 3.13 has none: only pickle frames can be had there
    msgspec = None  # type: ignore[assignment]


class Undecodable(Exception):
    """Raised for a frame on which SGLang's router would end."""


class FrameCodec(Protocol):
    """One encoding, both directions."""

    def encode(self, message: StandIn) -> bytes: ...
    def decode(self, frame: bytes) -> StandIn: ...


def frame_codec(name: str) -> FrameCodec:
    """The codec by the name a contract gives it."""
    return PickleFrames() if name == "pickle" else MsgpackFrames()


class PickleFrames:
    """SGLANG_USE_PICKLE_IPC=1, SGLang's default."""

    def encode(self, message: StandIn) -> bytes:
        return as_sglang(pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL))

    def decode(self, frame: bytes) -> StandIn:
        try:
            message = _StandInUnpickler(io.BytesIO(frame)).load()
        except Exception as exc:
            raise Undecodable(f"{type(exc).__name__}: {exc}") from exc
        if not isinstance(message, StandIn):
            raise Undecodable(f"a {type(message).__name__} is no message")
        return message


class _StandInUnpickler(pickle.Unpickler):
    """Finds SGLang's own names as stand-ins, both directions', and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("msgspec._utils", "rebuild"):
            return REBUILD
        if module == "array":
            return {"array": array, "_array_reconstructor": _array_reconstructor()}[name]
        if (module, name) == ("builtins", "set"):
            return set
        if (spec := structs().get(name)) is not None and spec.module == module:
            return struct_class(name)
        if (enumeration := member_class(module, name)) is not None:
            return enumeration
        if name in ("APIServerReqTimeStats", "SchedulerReqTimeStats"):
            return StandInTimeStats
        if (module, name) == ("http", "HTTPStatus"):
            return HTTPStatus
        raise pickle.UnpicklingError(f"{module}.{name} is on no wire of SGLang's")


def _array_reconstructor() -> Callable[..., Any]:
    return array("q").__reduce_ex__(4)[0]  # type: ignore[return-value]


class MsgpackFrames:
    """SGLANG_USE_PICKLE_IPC=0: arrays by position, types checked as msgspec checks them."""

    def __init__(self) -> None:
        if msgspec is None:
            raise RuntimeError("The msgpack codec needs msgspec, which isn't installed.")
        self._encoder = msgspec.msgpack.Encoder(enc_hook=_encode_hook)
        self._decoder = msgspec.msgpack.Decoder(ext_hook=_decode_ext)

    def encode(self, message: StandIn) -> bytes:
        return self._encoder.encode(_as_array(message))

    def decode(self, frame: bytes) -> StandIn:
        try:
            value = self._decoder.decode(frame)
            if not isinstance(value, list) or not value or not isinstance(value[0], str):
                raise Undecodable("the frame isn't an array that starts with a class name")
            return _from_array(value[0], value[1:])
        except Undecodable:
            raise
        except Exception as exc:
            raise Undecodable(f"{type(exc).__name__}: {exc}") from exc


def _as_array(message: StandIn) -> list[Any]:
    spec = message.__spec__
    values = [getattr(message, name) for name in spec.names]
    for at, name in enumerate(spec.names):
        if name in _PICKLED and values[at] is not None:
            values[at] = ["PickleWrapper", as_sglang(pickle.dumps(values[at]))]
        elif isinstance(values[at], Member):
            values[at] = int(values[at])
    return [spec.name, *values] if spec.tagged else values


def _encode_hook(value: Any) -> Any:
    if isinstance(value, StandIn):
        return _as_array(value) if value.__spec__.array_like else dict(vars(value))
    if isinstance(value, array):
        return _buffer(_EXT_ARRAY, value.typecode, value.tobytes())
    if isinstance(value, Tensor):
        return _buffer(MSGPACK_EXT, value.metadata(), value.data)
    raise NotImplementedError(f"{type(value).__name__} on the wire")


def _buffer(code: int, metadata: Any, data: bytes) -> Any:
    meta = msgspec.msgpack.encode(metadata)
    return msgspec.msgpack.Ext(code, struct.pack(">I", len(meta)) + meta + data)


def _decode_ext(code: int, data: memoryview) -> Any:
    if code != _EXT_ARRAY:
        raise Undecodable(f"extension type {code}")
    (length,) = struct.unpack_from(">I", data)
    values = array(msgspec.msgpack.decode(data[4 : 4 + length]))
    values.frombytes(data[4 + length :])
    return values


def _from_array(name: str, values: list[Any]) -> StandIn:
    spec = structs().get(name)
    if spec is None:
        raise Undecodable(f"unknown tag {name!r}")
    fields = {}
    for field, value in zip(spec.names, values, strict=False):
        value = _typed(value, spec.types[field])
        if problem := mismatch(value, spec.types[field]):
            raise Undecodable(f"{name}.{field}: {problem}")
        fields[field] = value
    message = make(name, **fields)
    if name == "SamplingParams" and not message.is_normalized:
        _post_init(message)
    return message


def _typed(value: Any, kind: Any) -> Any:
    """Nested structs and sets arrive as plain arrays, members of enumerations as plain integers."""
    if isinstance(kind, list) and kind[0] == "enum" and value in kind[2:]:
        return member(kind[1], value)
    if not isinstance(value, list | dict) or not isinstance(kind, list):
        return value
    head, *args = kind
    if head == "union":
        arm = next((arm for arm in args if isinstance(arm, list) and arm[0] in ("struct", "set", "list")), None)
        return value if arm is None else _typed(value, arm)
    if isinstance(value, dict):
        if head != "struct":
            return value
        types = structs()[args[0]].types
        return make(args[0], **{name: _typed(item, types[name]) for name, item in value.items()})
    if head == "set":
        return set(value)
    if head == "list":
        return [_typed(item, args[0]) for item in value]
    if head == "struct":
        tagged = structs()[args[0]].tagged
        return _from_array(args[0], value[1:] if tagged else value)
    return value


def _post_init(params: StandIn) -> None:
    """What SamplingParams.__post_init__ overwrites when the sender left is_normalized out."""
    vars(params).update(stop_strs=params.stop, stop_regex_strs=params.stop_regex)


_EXT_ARRAY: Final = 1
_PICKLED: Final = frozenset({"time_stats", "customized_info"})
