"""SGLang's message classes as data: read once from the installed sglang, kept with the package.

A type is written as JSON: "str", "int", "array", ["list", T], ["dict", K, V], ["union", T …], ["struct", NAME] ….
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, Final

from ...contract import REQUIRED, FieldList

VERSION: Final = "0.5.23"


@dataclass(frozen=True, slots=True)
class StructSpec:
    """One message class: where SGLang keeps it, its fields in wire order, their types and defaults."""

    name: str
    module: str
    tagged: bool
    array_like: bool
    names: tuple[str, ...]
    types: dict[str, Any]
    defaults: dict[str, Any]

    def required(self) -> tuple[str, ...]:
        """Names of the fields that have no default."""
        return tuple(name for name in self.names if name not in self.defaults)


class Member(int):
    """A member of one of SGLang's enumerations, by its value; a plain integer is none."""


@cache
def structs() -> dict[str, StructSpec]:
    """Every message class and every struct inside one, by name."""
    text = resources.files(__package__).joinpath(f"schema-{VERSION}.json").read_text("utf-8")
    return {name: _spec(name, raw) for name, raw in json.loads(text)["structs"].items()}


def field_lists() -> dict[str, FieldList]:
    """The same as a contract publishes it: fields in wire order, each with its default or REQUIRED."""
    return {
        name: tuple((field, spec.defaults.get(field, REQUIRED)) for field in spec.names)
        for name, spec in structs().items()
    }


def modules() -> dict[str, str]:
    """The module that each class lives in."""
    return {name: spec.module for name, spec in structs().items()}


def mismatch(value: Any, kind: Any) -> str:
    """Why `value` isn't of a type, "" if it is; as strict as msgspec is with SGLang's own decoder."""
    if isinstance(kind, str):
        return "" if _PLAIN[kind](value) else f"{type(value).__name__} instead of {kind}"
    head, *args = kind
    if head == "union":
        return _mismatch_union(value, args)
    return _COMPOSITE[head](value, args)


def _spec(name: str, raw: dict[str, Any]) -> StructSpec:
    fields = raw["fields"]
    return StructSpec(
        name=name,
        module=raw["module"],
        tagged=raw["tag"],
        array_like=raw["array"],
        names=tuple(field[0] for field in fields),
        types={field[0]: field[1] for field in fields},
        defaults={field[0]: field[2] for field in fields if len(field) > 2},
    )


def _mismatch_union(value: Any, kinds: list[Any]) -> str:
    problems = [mismatch(value, kind) for kind in kinds]
    return "" if "" in problems else " and ".join(dict.fromkeys(problems))


def _mismatch_items(value: Any, args: list[Any], container: type[list[Any] | set[Any]]) -> str:
    if not isinstance(value, container):
        return f"{type(value).__name__} instead of {container.__name__}"
    return next((f"item: {problem}" for item in value if (problem := mismatch(item, args[0]))), "")


def _mismatch_dict(value: Any, args: list[Any]) -> str:
    if not isinstance(value, dict):
        return f"{type(value).__name__} instead of dict"
    for key, item in value.items():
        if problem := mismatch(key, args[0]) or mismatch(item, args[1]):
            return f"{key!r}: {problem}"
    return ""


def _mismatch_struct(value: Any, args: list[Any]) -> str:
    found = getattr(type(value), "__struct_name__", type(value).__name__)
    return "" if found == args[0] else f"{found} instead of {args[0]}"


_PLAIN: Final[dict[str, Callable[[Any], bool]]] = {
    "any": lambda value: True,
    "null": lambda value: value is None,
    "str": lambda value: isinstance(value, str),
    "bytes": lambda value: isinstance(value, bytes),
    "bool": lambda value: isinstance(value, bool),
    "int": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "float": lambda value: isinstance(value, float | int) and not isinstance(value, bool),
    "array": lambda value: isinstance(value, array) and value.typecode == "q",
}

_COMPOSITE: Final[dict[str, Callable[[Any, list[Any]], str]]] = {
    "list": lambda value, args: _mismatch_items(value, args, list),
    "set": lambda value, args: _mismatch_items(value, args, set),
    "tuple": lambda value, args: "" if isinstance(value, tuple | list) else f"{type(value).__name__} instead of tuple",
    "dict": _mismatch_dict,
    "struct": _mismatch_struct,
    "literal": lambda value, args: "" if value in args else f"{value!r} is none of {args}",
    "enum": lambda value, args: (
        "" if isinstance(value, Member) and value in args[1:] else f"{value!r} is no {args[0]} of {args[1:]}"
    ),
}
