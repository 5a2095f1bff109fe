"""Pickle mode, SGLang's default: structs are written by name, without having their classes.

msgspec pickles a struct as `rebuild(cls, {fields})`; these opcodes are emitted directly, and Python's own pickle writes
the plain values, so that no stand-in for a class of SGLang's needs to be importable.
"""

from __future__ import annotations

import functools
import pickle
import sys
from array import array
from typing import Any, Final

from ..contract import WireFacts
from ..errors import WireError
from .incoming.repeated import RepeatedMessages
from .incoming.unpickle import Reader
from .message import EnumMember, Message, Struct
from .outgoing.fields import Checker

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
_BINBYTES: Final = b"B"
_STOP: Final = b"."
_SCALARS: Final = frozenset({type(None), bool, int, float, str})


class PickleCodec:
    """One engine's pickles."""

    def __init__(self, wire: WireFacts) -> None:
        self._checker = Checker(wire.schema)
        self._modules = wire.modules
        self._reader = Reader()
        self._repeated = RepeatedMessages()
        self._heads: dict[str, bytes] = {}
        """By kind, the opcodes that its pickle begins with."""

    def encode(self, kind: str, fields: dict[str, Any]) -> bytes:
        """A pickle that SGLang's own classes are rebuilt from."""
        return b"".join((_PROTO, self._struct(kind, fields), _STOP))

    def decode(self, frame: bytes) -> Message:
        """The message in a pickle."""
        repeated = self._repeated.read(frame)
        if repeated is not None:
            return repeated
        message = self._reader.loads(frame)
        if not isinstance(message, Message) or not isinstance(message.fields, dict):
            raise WireError(f"A frame holds {type(message).__name__}, not a message.")
        self._repeated.learn(frame, message)
        return message

    def _struct(self, kind: str, fields: dict[str, Any]) -> bytes:
        self._checker.check(kind, fields)
        head = self._heads.get(kind)
        if head is None:
            head = self._heads[kind] = self._head(kind)
        plain: dict[str, Any] = {}
        nested: list[bytes] = []
        for name, value in fields.items():
            if type(value) in _SCALARS:
                plain[name] = value
            elif isinstance(value, EnumMember):
                member = f"c{self._modules[kind]}\n{value.kind}\n".encode()
                nested += (_name(name), member, _body(value.value), _TUPLE1, _REDUCE)
            elif isinstance(value, (Struct, array)) or (type(value) is list and value and isinstance(value[0], Struct)):
                nested += (_name(name), self._value(value))
            else:
                plain[name] = value
        if not nested:
            return b"".join((head, _body(plain), _TUPLE2, _REDUCE))
        return b"".join((head, _body(plain), _MARK, *nested, _SETITEMS, _TUPLE2, _REDUCE))

    def _head(self, kind: str) -> bytes:
        try:
            module = self._modules[kind]
        except KeyError:
            raise WireError(f"The contract doesn't name the module of {kind}.") from None
        return _REBUILD + f"c{module}\n{kind}\n".encode()

    def _value(self, value: Any) -> bytes:
        if isinstance(value, Struct):
            return self._struct(value.kind, value.fields)
        if isinstance(value, array):
            data = value.tobytes()
            return b"".join((_ARRAY, _BINBYTES, len(data).to_bytes(4, "little"), data, _TUPLE, _REDUCE))
        return b"".join((_EMPTY_LIST, _MARK, *map(self._value, value), _APPENDS))


@functools.cache
def _name(name: str) -> bytes:
    """A field's name, of which there are only those of the schema."""
    return _body(name)


def _body(value: Any) -> bytes:
    """The opcodes that push a plain value: without the header and the STOP they can follow one another, as protocol 3
    numbers its memo slots explicitly."""
    return pickle.dumps(value, 3)[2:-1]
