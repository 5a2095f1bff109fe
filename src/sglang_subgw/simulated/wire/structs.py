"""Stand-ins for SGLang's message classes, made from the schema; they pickle to the same bytes.

pickle insists on finding a class under the name it writes. The stand-ins live in modules whose names have the same
length as SGLang's ("_" for "."), which `as_sglang` puts right in a finished frame: a real sglang stays importable.
"""

from __future__ import annotations

import sys
from functools import cache
from types import ModuleType
from typing import Any, ClassVar, Final

from .schema import Member, StructSpec, structs


class StandIn:
    """Base of the stand-ins: the fields as attributes, those not given at their defaults."""

    __struct_name__: ClassVar[str]
    __spec__: ClassVar[StructSpec]
    __defaults__: ClassVar[dict[str, Any]]

    def __init__(self, **fields: Any) -> None:
        self.__dict__.update(self.__defaults__)
        self.__dict__.update(fields)
        if unknown := self.__dict__.keys() - self.__spec__.types.keys():
            raise TypeError(f"{self.__struct_name__} has no field {sorted(unknown)}")
        if missing := [name for name in self.__spec__.required() if name not in fields]:
            raise TypeError(f"{self.__struct_name__} misses {missing}")

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"{self.__struct_name__} has no field {name}")

    def __reduce__(self) -> Any:
        return (_rebuild, (type(self), self.__dict__))

    def __repr__(self) -> str:
        return f"{self.__struct_name__}({self.__dict__})"


class StandInTimeStats:
    """Stand-in for SchedulerReqTimeStats with metrics off: an object with an empty state."""

    def __getstate__(self) -> dict[str, Any]:
        return {}


@cache
def struct_class(name: str) -> type[StandIn]:
    """The stand-in of one message class."""
    spec = structs()[name]
    defaults = {field: _default(value, spec.types[field]) for field, value in spec.defaults.items()}
    stand_in = type(name, (StandIn,), {"__struct_name__": name, "__spec__": spec, "__defaults__": defaults})
    publish(stand_in, name, spec.module)
    return stand_in


@cache
def member_class(module: str, name: str) -> type[Member] | None:
    """The stand-in of an enumeration, None for a name that is none on the wire."""
    if f"{module}.{name}" not in _enumerations():
        return None
    stand_in = type(name, (Member,), {"__reduce__": lambda self: (type(self), (int(self),))})
    publish(stand_in, name, module)
    return stand_in


def member(path: str, value: int) -> Member:
    """A member by its enumeration's full name and its value."""
    module, _, name = path.rpartition(".")
    stand_in = member_class(module, name)
    assert stand_in is not None
    return stand_in(value)


def make(name: str, /, **fields: Any) -> StandIn:
    """A message by its class's name; raises TypeError as SGLang's class does."""
    return struct_class(name)(**fields)


def as_sglang(frame: bytes) -> bytes:
    """Replace the stand-ins' module names in a pickle by SGLang's, which are as long."""
    for module in _PUBLISHED:
        written = b"\x8c" + bytes([len(module)])
        frame = frame.replace(written + _alias(module).encode(), written + module.encode())
    return frame


def _default(value: Any, kind: Any) -> Any:
    return member(kind[1], value) if isinstance(kind, list) and kind[0] == "enum" else value


@cache
def _enumerations() -> frozenset[str]:
    kinds = (kind for spec in structs().values() for kind in spec.types.values())
    return frozenset(kind[1] for kind in kinds if isinstance(kind, list) and kind[0] == "enum")


def _alias(module: str) -> str:
    return module.replace(".", "_")


def publish(thing: Any, name: str, module: str) -> None:
    """Let something pickle under a name of SGLang's, or of what SGLang uses."""
    alias = _alias(module)
    _PUBLISHED.add(module)
    setattr(sys.modules.setdefault(alias, ModuleType(alias)), name, thing)
    thing.__module__ = alias
    thing.__qualname__ = name


def _rebuild(cls: type[StandIn], fields: dict[str, Any]) -> StandIn:
    return cls(**fields)


_PUBLISHED: Final[set[str]] = set()
publish(_rebuild, "rebuild", "msgspec._utils")
_rebuild.__name__ = "rebuild"
publish(StandInTimeStats, "SchedulerReqTimeStats", "sglang.srt.observability.req_time_stats")
REBUILD: Final = _rebuild
