"""Stand-ins for SGLang's message classes, made from the schema; they pickle to the same bytes.

pickle insists on finding a class under the name it writes. The stand-ins live in modules whose names have the same
length as SGLang's ("_" for "."), which `as_sglang` puts right in a finished frame: a real sglang stays importable.
"""

from __future__ import annotations

import sys
from functools import cache
from types import ModuleType
from typing import Any, ClassVar, Final

from .schema import StructSpec, structs


class Struct:
    """Base of the stand-ins: the fields as attributes, those not given at their defaults."""

    __struct_name__: ClassVar[str]
    __spec__: ClassVar[StructSpec]

    def __init__(self, **fields: Any) -> None:
        self.__dict__.update(self.__spec__.defaults)
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


class TimeStats:
    """Stand-in for SchedulerReqTimeStats with metrics off: an object with an empty state."""

    def __getstate__(self) -> dict[str, Any]:
        return {}


@cache
def struct_class(name: str) -> type[Struct]:
    """The stand-in of one message class."""
    spec = structs()[name]
    stand_in = type(name, (Struct,), {"__struct_name__": name, "__spec__": spec, "__module__": _alias(spec.module)})
    _publish(stand_in, name, spec.module)
    return stand_in


def make(name: str, **fields: Any) -> Struct:
    """A message by its class's name; raises TypeError as SGLang's class does."""
    return struct_class(name)(**fields)


def as_sglang(frame: bytes) -> bytes:
    """Replace the stand-ins' module names in a pickle by SGLang's, which are as long."""
    for module in _PUBLISHED:
        written = b"\x8c" + bytes([len(module)])
        frame = frame.replace(written + _alias(module).encode(), written + module.encode())
    return frame


def _alias(module: str) -> str:
    return module.replace(".", "_")


def _publish(thing: Any, name: str, module: str) -> None:
    alias = _alias(module)
    _PUBLISHED.add(module)
    setattr(sys.modules.setdefault(alias, ModuleType(alias)), name, thing)
    thing.__module__ = alias
    thing.__qualname__ = name


def _rebuild(cls: type[Struct], fields: dict[str, Any]) -> Struct:
    return cls(**fields)


_PUBLISHED: Final[set[str]] = set()
_publish(_rebuild, "rebuild", "msgspec._utils")
_rebuild.__name__ = "rebuild"
_publish(TimeStats, "SchedulerReqTimeStats", "sglang.srt.observability.req_time_stats")
REBUILD: Final = _rebuild
