"""Sampling parameters one by one: each value's type is checked before anything is made of it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

from ...errors import RequestRejected
from ...wire.outgoing.values import is_int, is_str
from .plan import shown, wrong


def integer(name: str, value: Any) -> int:
    """A 64-bit integer; a float without a fraction counts as one."""
    if type(value) is float and value.is_integer():
        value = int(value)
    if is_int(value):
        return value
    if type(value) is not int:
        raise wrong(name, "an integer", value)
    raise RequestRejected(f"{name} must be in [-2**63, 2**63 - 1], got {value}.", param=name)


def _seed(name: str, value: Any) -> int:
    if type(value) is not int:
        raise RequestRejected(f"{name} must be an integer, got {type(value).__name__}.", param=name)
    return integer(name, value)


def _number(name: str, value: Any) -> float:
    if type(value) is not float and type(value) is not int:
        raise wrong(name, "a number", value)
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        rule = "a non-negative finite number" if name == "temperature" else "a finite number"
        raise RequestRejected(f"{name} must be {rule}, got {number}.", param=name)
    return number


def _flag(name: str, value: Any) -> bool:
    if type(value) is not bool:
        raise wrong(name, "a boolean", value)
    return value


def _string(name: str, value: Any) -> str:
    if is_str(value):
        return value
    if type(value) is not str:
        raise wrong(name, "a string", value)
    raise RequestRejected(f"{name} must be valid Unicode text, got {shown(value)}.", param=name)


def _strings(name: str, value: Any) -> list[str]:
    if type(value) is str:
        return [_string(name, value)]
    if type(value) is not list:
        raise wrong(name, "a string or a list of strings", value)
    return [_string(name, item) for item in value]


def _token_ids(name: str, value: Any) -> list[int]:
    if not isinstance(value, list | tuple | set | frozenset):
        raise wrong(name, "a list of integers", value)
    return [integer(name, item) for item in value if item is not None]


def _biases(name: str, value: Any) -> dict[str, float]:
    if not isinstance(value, dict):
        raise wrong(name, "an object of token ids and numbers", value)
    return {_string(name, str(key)): _number(name, bias) for key, bias in value.items()}


def _custom(name: str, value: Any) -> dict[str, Any]:
    """Scalars, lists of them and objects of them: what SGLang's message can carry."""
    if not isinstance(value, dict):
        raise wrong(name, "an object", value)
    for key, item in value.items():
        _string(name, key)
        nested = item if isinstance(item, list) else list(item.values()) if isinstance(item, dict) else [item]
        for key_inside in item if isinstance(item, dict) else ():
            _string(name, key_inside)
        for scalar in nested:
            _scalar(name, scalar)
    return value


def _scalar(name: str, value: Any) -> None:
    if type(value) is str:
        _string(name, value)
    elif type(value) is float:
        _number(name, value)
    elif type(value) is int:
        integer(name, value)
    elif value is not None and type(value) is not bool:
        raise wrong(name, "an object of scalars, or of lists or objects of scalars", value)


def _not_here(name: str, value: Any) -> Any:
    raise RequestRejected(f"{name} is not implemented here.", param=name)


READERS: Final[dict[str, Callable[[str, Any], Any]]] = {
    "max_new_tokens": integer,
    "stop": _strings,
    "stop_token_ids": _token_ids,
    "stop_regex": _strings,
    "temperature": _number,
    "top_p": _number,
    "top_k": integer,
    "min_p": _number,
    "frequency_penalty": _number,
    "presence_penalty": _number,
    "repetition_penalty": _number,
    "min_new_tokens": integer,
    "n": integer,
    "beam_width": integer,
    "json_schema": _string,
    "regex": _string,
    "ebnf": _string,
    "structural_tag": _string,
    "ignore_eos": _flag,
    "skip_special_tokens": _flag,
    "spaces_between_special_tokens": _flag,
    "no_stop_trim": _flag,
    "stream_interval": integer,
    "logit_bias": _biases,
    "sampling_seed": _seed,
    "custom_params": _custom,
    "watermark": _not_here,
}
"""By name, what a client may set: the reader returns the wire's value or raises RequestRejected."""
