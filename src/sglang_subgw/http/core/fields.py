"""Table-driven checks of a request's fields: a table reads as the endpoint's documentation.

Every field of the API is in its table, implemented or not. `null` stands for "not given" everywhere. A field that isn't
in the table, or that is there but not implemented, is refused by its name: nothing is ever ignored in silence.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from ...errors import RequestRejected
from .body import json_type

type Check = Callable[[Any, str], Any]
"""Takes a value and its field's name; returns the value to use, or raises RequestRejected."""

_INT64: Final = 2**63


@dataclass(frozen=True, slots=True)
class Field:
    """One field: how it is checked, what it is when not given, and why it is refused if it isn't implemented."""

    name: str
    check: Check
    default: Any = None
    required: bool = False
    refusal: str = ""


class FieldTable:
    """All fields of one endpoint."""

    def __init__(self, *fields: Field) -> None:
        self.fields = {field.name: field for field in fields}
        self._defaults = {field.name: field.default for field in fields if not field.refusal}
        self._required = [field.name for field in fields if field.required]

    def read(self, body: dict[str, Any]) -> dict[str, Any]:
        """Every implemented field's value; raises RequestRejected for the first wrong one."""
        values = self._defaults.copy()
        for name, value in body.items():
            field = self.fields.get(name)
            if field is None:
                shown = name if len(name) <= 100 else name[:100] + "…"
                raise RequestRejected(f"Unknown field {shown!r}.{self._suggestion(shown)}", param=shown)
            if field.refusal:
                if value is not None and value not in ([], {}) and value != field.default:
                    raise RequestRejected(f"Field {name!r} is not supported: {field.refusal}.", param=name)
            elif value is not None:
                values[name] = field.check(value, name)
        for name in self._required:
            if values[name] is None:
                raise RequestRejected(f"Field {name!r} is required.", param=name)
        return values

    def _suggestion(self, name: str) -> str:
        close = difflib.get_close_matches(name, self.fields, n=1)
        return f" Did you mean {close[0]!r}?" if close else ""


def required(name: str, check: Check) -> Field:
    """A field that has to be given."""
    return Field(name, check, required=True)


def optional(name: str, check: Check, default: Any = None) -> Field:
    """A field that may be left out."""
    return Field(name, check, default)


def refused(name: str, why: str, default: Any = None) -> Field:
    """A field of the API that isn't implemented: only null, an empty value or its default passes."""
    return Field(name, any_value, default, refusal=why)


def wrong(name: str, wanted: str, value: Any) -> RequestRejected:
    """The error for a value of the wrong kind."""
    return RequestRejected(f"{name!r} must be {wanted}, not {json_type(value)}.", param=name)


def any_value(value: Any, name: str) -> Any:
    """Anything."""
    return value


def of_type[T](kind: type[T], wanted: str) -> Callable[[Any, str], T]:
    """A value that JSON reads as this kind."""

    def check(value: Any, name: str) -> T:
        if isinstance(value, kind):
            return value
        raise wrong(name, wanted, value)

    return check


boolean: Final = of_type(bool, "a boolean")
string: Final = of_type(str, "a string")
mapping: Final[Callable[[Any, str], dict[str, Any]]] = of_type(dict, "an object")


def integer(value: Any, name: str) -> int:
    """A whole number of 64 bits; 3.0 counts as one."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool):
        raise wrong(name, "an integer", value)
    if not -_INT64 <= value < _INT64:
        raise RequestRejected(f"{name!r} must fit in 64 bits.", param=name)
    return value


def number(value: Any, name: str) -> float:
    """A finite number."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            raise RequestRejected(f"{name!r} is out of range.", param=name) from None
    raise wrong(name, "a number", value)


def at_least(minimum: int) -> Check:
    """An integer from `minimum` up."""

    def check(value: Any, name: str) -> int:
        value = integer(value, name)
        if value < minimum:
            raise RequestRejected(f"{name!r} must be at least {minimum}, not {value}.", param=name)
        return int(value)

    return check


def one_of(*choices: Any) -> Check:
    """One of a few values."""

    def check(value: Any, name: str) -> Any:
        for choice in choices:
            if value == choice and type(value) is type(choice):
                return value
        listed = ", ".join(map(repr, choices))
        shown = repr(value) if isinstance(value, str) else json_type(value)
        raise RequestRejected(f"{name!r} must be one of {listed}, not {shown}.", param=name)

    return check


def list_of(item: Check) -> Check:
    """An array whose items all pass."""

    def check(value: Any, name: str) -> list[Any]:
        if not isinstance(value, list):
            raise wrong(name, "an array", value)
        return [item(part, f"{name}[{position}]") for position, part in enumerate(value)]

    return check


def map_of(item: Check) -> Check:
    """An object whose values all pass."""

    def check(value: Any, name: str) -> dict[str, Any]:
        return {key: item(part, f"{name}.{key}") for key, part in mapping(value, name).items()}

    return check


def nullable(item: Check) -> Check:
    """null, or what passes."""

    def check(value: Any, name: str) -> Any:
        return None if value is None else item(value, name)

    return check


def single_or_list(item: Check) -> Check:
    """One value, or an array of them."""
    many = list_of(item)

    def check(value: Any, name: str) -> Any:
        return many(value, name) if isinstance(value, list) else item(value, name)

    return check


def token_ids(value: Any, name: str) -> list[int]:
    """An array of token ids; the range of each is checked where the vocabulary is known."""
    if not isinstance(value, list):
        raise wrong(name, "an array of token ids", value)
    for position, token in enumerate(value):
        if type(token) is not int:
            raise wrong(f"{name}[{position}]", "an integer", token)
        if not -_INT64 <= token < _INT64:
            raise RequestRejected(f"'{name}[{position}]' must fit in 64 bits.", param=name)
    return value


def token_id_lists(value: Any, name: str) -> list[int] | list[list[int]]:
    """An array of token ids, or an array of such arrays."""
    if isinstance(value, list) and value and isinstance(value[0], list):
        return [token_ids(row, f"{name}[{position}]") for position, row in enumerate(value)]
    return token_ids(value, name)


def texts(item: Check, wanted: str) -> Check:
    """A text, or an array of what passes, with at least one."""
    many = list_of(item)

    def check(value: Any, name: str) -> Any:
        if isinstance(value, str):
            return value
        if not isinstance(value, list):
            raise wrong(name, wanted, value)
        if not value:
            raise RequestRejected(f"{name!r} must not be an empty array.", param=name)
        return many(value, name)

    return check


_row: Final = list_of(integer)
_rows: Final = list_of(_row)


def positions(value: Any, name: str) -> Any:
    """An array of positions in a prompt, or one for each prompt."""
    return (_rows if isinstance(value, list) and value and isinstance(value[0], list) else _row)(value, name)


vectors: Final = list_of(list_of(number))
"""In the place of tokens."""
overrides: Final = list_of(nullable(vectors))
"""For each prompt a list of them, or null."""
hidden_states: Final = one_of(True, False, "last")

PROMPT_FIELDS: Final = (
    optional("rid", single_or_list(string)),
    optional("lora_path", single_or_list(nullable(string))),
    optional("priority", integer),
)
"""Those that every request of prompts has."""

GENERATION_FIELDS: Final = (
    *PROMPT_FIELDS,
    optional("stream", boolean, False),
    optional("return_routed_experts", boolean, False),
    optional("routed_experts_start_len", at_least(0), 0),
    optional("session_id", string),
    # Scheduling and caching
    optional("extra_key", single_or_list(string)),
    optional("cache_salt", single_or_list(string)),
    optional("routed_dp_rank", integer),
    optional("data_parallel_rank", integer),
    # Disaggregated prefill and decode
    optional("bootstrap_port", single_or_list(nullable(integer))),
    optional("disagg_prefill_dp_rank", integer),
)
"""Those that every request to generate has; /generate and OpenAI's endpoints pass them on as they are."""
