"""What each field of a message that a shard sends may hold: pickle mode has no type check on the other side.

One wrong type ends the router or the scheduler for every client, so nothing else is ever encoded.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable
from typing import Any, Final

from ..contract import REQUIRED, FieldList
from ..errors import WireError
from .message import Struct

type Check = Callable[[Any], bool]

_INT64: Final = range(-(2**63), 2**63)


def _bool(value: Any) -> bool:
    return value is True or value is False


def _int(value: Any) -> bool:
    return type(value) is int and value in _INT64


def _float(value: Any) -> bool:
    return type(value) is float and math.isfinite(value)


def _str(value: Any) -> bool:
    if type(value) is not str:
        return False
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            return False
    return True


def _ids(value: Any) -> bool:
    return isinstance(value, array) and value.typecode == "q"


def _int_list(value: Any) -> bool:
    return type(value) is list and all(map(_int, value))


def _int_set(value: Any) -> bool:
    return type(value) is set and all(map(_int, value))


def _str_list(value: Any) -> bool:
    return type(value) is list and all(map(_str, value))


def _biases(value: Any) -> bool:
    return type(value) is dict and all(map(_str, value)) and all(map(_float, value.values()))


def _scalar(value: Any) -> bool:
    return value is None or _bool(value) or _int(value) or _float(value) or _str(value)


def _custom(value: Any) -> bool:
    return (
        type(value) is dict
        and all(map(_str, value))
        and all(
            _scalar(item)
            or (type(item) is list and all(map(_scalar, item)))
            or (type(item) is dict and all(map(_str, item)) and all(map(_scalar, item.values())))
            for item in value.values()
        )
    )


def _hidden(value: Any) -> bool:
    return _bool(value) or value == "last"


def _plain(value: Any) -> bool:
    if type(value) is list:
        return all(map(_plain, value))
    if type(value) is dict:
        return all(map(_str, value)) and all(map(_plain, value.values()))
    return _scalar(value)


def _struct(kind: str) -> Check:
    return lambda value: isinstance(value, Struct) and value.kind == kind


def _structs(kind: str) -> Check:
    check = _struct(kind)
    return lambda value: type(value) is list and bool(value) and all(map(check, value))


def _or_none(check: Check) -> Check:
    return lambda value: value is None or check(value)


_TO_ENGINE: Final[dict[str, Check]] = {"rid": _str, "http_worker_ipc": _str}

SENT: Final[dict[str, dict[str, Check]]] = {
    "TokenizerWorkerRegistrationReq": {"worker_ipc_name": _str, "http_worker_ipc": _str},
    "AbortReq": {**_TO_ENGINE, "abort_all": _bool},
    "BatchTokenizedGenerateReqInput": {"batch": _structs("TokenizedGenerateReqInput")},
    "TokenizedGenerateReqInput": {
        **_TO_ENGINE,
        "input_text": _or_none(_str),
        "input_ids": _ids,
        "input_embeds": lambda value: value is None,
        "mm_inputs": lambda value: value is None,
        "token_type_ids": lambda value: value is None,
        "sampling_params": _struct("SamplingParams"),
        "return_logprob": _bool,
        "logprob_start_len": _int,
        "top_logprobs_num": _int,
        "token_ids_logprob": _or_none(_int_list),
        "stream": _bool,
        "return_hidden_states": _hidden,
        "return_routed_experts": _bool,
        "routed_experts_start_len": _int,
        "return_indexer_topk": _bool,
        "session_id": _or_none(_str),
        "session_params": _or_none(_struct("SessionParams")),
        "custom_logit_processor": _or_none(_str),
        "bootstrap_host": _or_none(_str),
        "bootstrap_port": _or_none(_int),
        "bootstrap_room": _or_none(_int),
        "routed_dp_rank": _or_none(_int),
        "disagg_prefill_dp_rank": _or_none(_int),
        "routing_key": _or_none(_str),
        "require_reasoning": _bool,
        "priority": _or_none(_int),
        "extra_key": _or_none(_str),
        "cache_salt": _or_none(_str),
    },
    "SamplingParams": {
        "max_new_tokens": _or_none(_int),
        "stop_token_ids": _or_none(_int_set),
        "temperature": _float,
        "top_p": _float,
        "top_k": _int,
        "min_p": _float,
        "frequency_penalty": _float,
        "presence_penalty": _float,
        "repetition_penalty": _float,
        "min_new_tokens": _int,
        "n": _int,
        "json_schema": _or_none(_str),
        "regex": _or_none(_str),
        "ebnf": _or_none(_str),
        "structural_tag": _or_none(_str),
        "ignore_eos": _bool,
        "skip_special_tokens": _bool,
        "spaces_between_special_tokens": _bool,
        "no_stop_trim": _bool,
        "stream_interval": _or_none(_int),
        "logit_bias": _or_none(_biases),
        "sampling_seed": _or_none(_int),
        "custom_params": _or_none(_custom),
        "stop_strs": _str_list,
        "stop_regex_strs": _str_list,
        "stop_str_max_len": _int,
        "stop_regex_max_len": _int,
        "is_normalized": lambda value: value is True,
    },
    "SessionParams": {
        "id": _or_none(_str),
        "rid": _or_none(_str),
        "offset": _or_none(_int),
        "replace": _or_none(_bool),
        "drop_previous_output": _or_none(_bool),
    },
    "PauseGenerationReqInput": {**_TO_ENGINE, "mode": lambda value: value in ("abort", "retract", "in_place")},
    "ContinueGenerationReqInput": {**_TO_ENGINE, "torch_empty_cache": _bool},
    "FlushCacheReqInput": {**_TO_ENGINE, "timeout_s": _or_none(_float)},
    "GetInternalStateReq": _TO_ENGINE,
}
"""By message, every field that a shard may set. Messages that aren't here may hold any plain value."""

MANDATORY: Final[dict[str, frozenset[str]]] = {
    "TokenizedGenerateReqInput": frozenset({"rid", "http_worker_ipc"}),
    "AbortReq": frozenset({"rid"}),
    "SamplingParams": frozenset({"stop_strs", "stop_regex_strs", "is_normalized"}),
}
"""Optional in the schema, but the engine breaks, or the answer is lost, without them."""


class Checker:
    """Checks outgoing fields against the engine's schema and the table above."""

    def __init__(self, schema: dict[str, FieldList]) -> None:
        self._known = {kind: frozenset(name for name, _ in fields) for kind, fields in schema.items()}
        self._required = {
            kind: frozenset(name for name, default in fields if default == REQUIRED) | MANDATORY.get(kind, frozenset())
            for kind, fields in schema.items()
        }

    def check(self, kind: str, fields: dict[str, Any]) -> None:
        """Raises WireError unless the engine would read these fields as they are meant."""
        known = self._known.get(kind)
        if known is None:
            raise WireError(f"This engine has no message {kind}.")
        if missing := self._required[kind] - fields.keys():
            raise WireError(f"{kind} lacks {', '.join(sorted(missing))}.")
        checks = SENT.get(kind)
        for name, value in fields.items():
            if name not in known:
                raise WireError(f"{kind} has no field {name} in this engine.")
            check = _plain if checks is None else checks.get(name)
            if check is None:
                raise WireError(f"{kind}.{name} is not one that a shard sets.")
            if not check(value):
                raise WireError(f"{kind}.{name} can't be {_shown(value)}.")


def _shown(value: Any) -> str:
    text = repr(value)
    return f"{text[:80]}…" if len(text) > 80 else text
