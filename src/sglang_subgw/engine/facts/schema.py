"""The wire's message classes as plain data, read from the installed sglang: never hard-coded, never out of date."""

from __future__ import annotations

import enum
import json
import typing
from collections.abc import Iterator
from typing import Any

import msgspec

from ...contract import REQUIRED, FieldList


def read_schema() -> dict[str, FieldList]:
    """Field lists, in wire order, of every message class and of every struct inside one."""
    return {cls.__name__: field_list(cls) for cls in message_classes()}


def read_modules() -> dict[str, str]:
    """The module each of those classes lives in."""
    return {cls.__name__: cls.__module__ for cls in message_classes()}


def message_classes() -> tuple[type[msgspec.Struct], ...]:
    """Every class that SGLang's processes send one another, and every struct that occurs in a field of one."""
    from sglang.srt.managers import io_struct

    found: dict[str, type[msgspec.Struct]] = {}
    wrapper = getattr(io_struct, "PickleWrapper", None)
    roots = [*_subclasses(io_struct.BaseReq), *_subclasses(io_struct.BaseBatchReq), *([wrapper] if wrapper else [])]
    for cls in roots:
        _collect(cls, found)
    return tuple(found.values())


def _subclasses(cls: type) -> Iterator[type]:
    subclasses: list[type] = cls.__subclasses__()
    for subclass in subclasses:
        yield subclass
        yield from _subclasses(subclass)


def _collect(annotation: Any, found: dict[str, type[msgspec.Struct]]) -> None:
    if isinstance(annotation, type) and issubclass(annotation, msgspec.Struct):
        if found.setdefault(annotation.__name__, annotation) is not annotation:
            raise TypeError(f"Two message classes are named {annotation.__name__}.")
        for field in msgspec.structs.fields(annotation):
            if not _seen(field.type, found):
                _collect(field.type, found)
    for argument in typing.get_args(annotation):
        if not _seen(argument, found):
            _collect(argument, found)


def _seen(annotation: Any, found: dict[str, type[msgspec.Struct]]) -> bool:
    return isinstance(annotation, type) and found.get(annotation.__name__) is annotation


def field_list(cls: type[msgspec.Struct]) -> FieldList:
    """A struct's fields in wire order."""
    return tuple((field.encode_name, _default(field)) for field in msgspec.structs.fields(cls))


def _default(field: msgspec.structs.FieldInfo) -> Any:
    if field.default is not msgspec.NODEFAULT:
        return _plain(field.default)
    if field.default_factory is msgspec.NODEFAULT:
        return REQUIRED
    # A factory that makes something new each time (an id) has no value that could be published.
    first, second = field.default_factory(), field.default_factory()
    return _plain(first) if first == second else REQUIRED


def _plain(value: Any) -> Any:
    if isinstance(value, enum.Enum):
        value = value.value
    try:
        return json.loads(json.dumps(value))
    except TypeError:
        return REQUIRED
