"""What a value of an outgoing message may be: pickle mode has no type check on the other side."""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable
from typing import Any, Final, TypeGuard

from ..message import EnumMember, Struct

type Check = Callable[[Any], bool]

_INT64: Final = range(-(2**63), 2**63)


def is_bool(value: Any) -> bool:
    """True or False and nothing like it."""
    return value is True or value is False


def is_int(value: Any) -> TypeGuard[int]:
    """A signed 64-bit integer."""
    return type(value) is int and value in _INT64


def is_float(value: Any) -> bool:
    """A finite float."""
    return type(value) is float and math.isfinite(value)


def is_str(value: Any) -> TypeGuard[str]:
    """Text that UTF-8 can carry."""
    if type(value) is not str:
        return False
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            return False
    return True


def is_ids(value: Any) -> bool:
    """Token ids as the wire has them: an array of 64-bit integers."""
    return isinstance(value, array) and value.typecode == "q"


def is_int_list(value: Any) -> bool:
    """A list of integers."""
    return type(value) is list and all(map(is_int, value))


def is_int_set(value: Any) -> bool:
    """A set of integers."""
    return type(value) is set and all(map(is_int, value))


def is_str_list(value: Any) -> bool:
    """A list of texts."""
    return type(value) is list and all(map(is_str, value))


def is_biases(value: Any) -> bool:
    """Token ids, as text, with a float each."""
    return type(value) is dict and all(map(is_str, value)) and all(map(is_float, value.values()))


def is_scalar(value: Any) -> bool:
    """None, a boolean, a number or a text."""
    return value is None or is_bool(value) or is_int(value) or is_float(value) or is_str(value)


def is_custom(value: Any) -> bool:
    """SGLang's custom_params: scalars, lists and objects of scalars."""
    return (
        type(value) is dict
        and all(map(is_str, value))
        and all(
            is_scalar(item)
            or (type(item) is list and all(map(is_scalar, item)))
            or (type(item) is dict and all(map(is_str, item)) and all(map(is_scalar, item.values())))
            for item in value.values()
        )
    )


def is_hidden(value: Any) -> bool:
    """SGLang's modes of returning hidden states."""
    return is_bool(value) or value == "last"


def is_plain(value: Any) -> bool:
    """What JSON can carry."""
    if type(value) is list:
        return all(map(is_plain, value))
    if type(value) is dict:
        return all(map(is_str, value)) and all(map(is_plain, value.values()))
    return is_scalar(value)


def is_struct(kind: str) -> Check:
    """A check for a struct of that kind."""
    return lambda value: isinstance(value, Struct) and value.kind == kind


def is_structs(kind: str) -> Check:
    """A check for a non-empty list of such structs."""
    check = is_struct(kind)
    return lambda value: type(value) is list and bool(value) and all(map(check, value))


def or_none(check: Check) -> Check:
    """The same check, that lets None pass as well."""
    return lambda value: value is None or check(value)


def is_bytes_list(value: Any) -> bool:
    """A non-empty list of byte strings."""
    return type(value) is list and bool(value) and all(type(item) is bytes for item in value)


def is_str_map(value: Any) -> bool:
    """An object of texts."""
    return type(value) is dict and all(map(is_str, value)) and all(map(is_str, value.values()))


def is_member(kind: str) -> Check:
    """A check for a member of that enumeration."""
    return lambda value: isinstance(value, EnumMember) and value.kind == kind


def one_of(*choices: str) -> Check:
    """A check for one of these texts."""
    return lambda value: type(value) is str and value in choices
