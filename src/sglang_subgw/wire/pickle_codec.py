"""Pickle mode, SGLang's default: structs are written by name, without having their classes.

msgspec pickles a struct as `rebuild(cls, {fields})`; these opcodes are emitted directly, and Python's own pickle writes
the plain values, so that no stand-in for a class of SGLang's needs to be importable.
"""

from __future__ import annotations

import pickle
import sys
from array import array
from typing import Any, Final

from ..contract import WireFacts
from ..errors import WireError
from .fields import Checker
from .message import Member, Message, Struct
from .unpickle import Reader

_PROTO: Final = b"\x80\x03"
_REBUILD: Final = b"cmsgspec._utils\nrebuild\n"
_ARRAY: Final = b"carray\n_array_reconstructor\n(carray\narray\nX\x01\x00\x00\x00qK" + (
    b"\x0c" if sys.byteorder == "little" else b"\x0d"
)
_MARK: Final = b"("
_TUPLE: Final = b"t"
_TUPLE1: Final = b"\x85"
_TUPLE2: Final = b"\x86"
_REDUCE: Final = b"R"
_SETITEMS: Final = b"u"
_APPENDS: Final = b"e"
_EMPTY_LIST: Final = b"]"
_STOP: Final = b"."


class PickleCodec:
    """One engine's pickles."""

    def __init__(self, wire: WireFacts) -> None:
        self._checker = Checker(wire.schema)
        self._modules = wire.modules
        self._reader = Reader()

    def encode(self, kind: str, fields: dict[str, Any]) -> bytes:
        """A pickle that SGLang's own classes are rebuilt from."""
        return b"".join((_PROTO, self._struct(kind, fields), _STOP))

    def decode(self, frame: bytes) -> Message:
        """The message in a pickle."""
        message = self._reader.loads(frame)
        if not isinstance(message, Message) or not isinstance(message.fields, dict):
            raise WireError(f"A frame holds {type(message).__name__}, not a message.")
        return message

    def _struct(self, kind: str, fields: dict[str, Any]) -> bytes:
        self._checker.check(kind, fields)
        try:
            module = self._modules[kind]
        except KeyError:
            raise WireError(f"The contract doesn't name the module of {kind}.") from None
        plain: dict[str, Any] = {}
        nested: list[bytes] = []
        for name, value in fields.items():
            if isinstance(value, Member):
                nested += (_body(name), f"c{module}\n{value.kind}\n".encode(), _body(value.value), _TUPLE1, _REDUCE)
            elif isinstance(value, (Struct, array)) or (type(value) is list and value and isinstance(value[0], Struct)):
                nested += (_body(name), self._value(value))
            else:
                plain[name] = value
        parts = [_REBUILD, f"c{module}\n{kind}\n".encode(), _body(plain)]
        if nested:
            parts += (_MARK, *nested, _SETITEMS)
        parts += (_TUPLE2, _REDUCE)
        return b"".join(parts)

    def _value(self, value: Any) -> bytes:
        if isinstance(value, Struct):
            return self._struct(value.kind, value.fields)
        if isinstance(value, array):
            return b"".join((_ARRAY, _body(value.tobytes()), _TUPLE, _REDUCE))
        return b"".join((_EMPTY_LIST, _MARK, *map(self._value, value), _APPENDS))


def _body(value: Any) -> bytes:
    """The opcodes that push a plain value: without the header and the STOP they can follow one another, as protocol 3
    numbers its memo slots explicitly."""
    return pickle.dumps(value, 3)[2:-1]
