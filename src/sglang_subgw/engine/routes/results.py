"""What a method gave back as plain JSON values."""

from __future__ import annotations

import base64
import dataclasses
from collections.abc import Mapping, Set
from enum import Enum
from pathlib import PurePath
from typing import Any

import msgspec

from ...errors import RequestError


def plain(value: Any) -> Any:
    """Structs and dataclasses as objects, arrays and tensors as lists, bytes in base64.

    Raises RequestError, which names the type, for what has no JSON form.
    """
    try:
        return _plain(value)
    except RecursionError:
        raise RequestError("The method's result contains itself, or is nested too deeply for JSON.") from None


def _plain(value: Any) -> Any:
    match value:
        case Enum():
            return _plain(value.value)
        case None | bool() | int() | float() | str():
            return value
        case bytes() | bytearray() | memoryview():
            return base64.b64encode(value).decode()
        case Mapping():
            return {_key(key): _plain(item) for key, item in value.items()}
        case list() | tuple() | Set():
            return [_plain(item) for item in value]
        case msgspec.Struct():
            return {field: _plain(getattr(value, field)) for field in value.__struct_fields__}
        case PurePath():
            return str(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if hasattr(value, "tolist") and not isinstance(value, type):  # numpy's and torch's, scalars included.
        return _plain(value.tolist())
    try:
        return msgspec.to_builtins(value)
    except TypeError:
        kind = f"{type(value).__module__}.{type(value).__qualname__}"
        raise RequestError(f"The method gave back a value of type {kind}, which has no JSON form.") from None


def _key(key: Any) -> str:
    match _plain(key):
        case str() as text:
            return text
        case bool() | None as word:
            return {None: "null", True: "true", False: "false"}[word]
        case int() | float() as number:
            return str(number)
    raise RequestError(f"The method gave back an object with a key of type {type(key).__name__}: JSON's are strings.")
