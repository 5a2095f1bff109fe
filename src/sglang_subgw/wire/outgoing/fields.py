"""What each field of a message that a shard sends may hold: pickle mode has no type check on the other side.

One wrong type ends the router or the scheduler for every client, so nothing else is ever encoded.
"""

from __future__ import annotations

from typing import Any, Final

from ...contract import REQUIRED, FieldList
from ...errors import WireError
from .control_fields import CONTROL
from .values import (
    Check,
    is_biases,
    is_bool,
    is_custom,
    is_float,
    is_hidden,
    is_ids,
    is_int,
    is_int_list,
    is_int_set,
    is_plain,
    is_str,
    is_str_list,
    is_struct,
    is_structs,
    or_none,
)

_TO_ENGINE: Final[dict[str, Check]] = {"rid": is_str, "http_worker_ipc": is_str}
_TOKENIZED: Final[dict[str, Check]] = {
    **_TO_ENGINE,
    "input_text": or_none(is_str),
    "input_ids": is_ids,
    "mm_inputs": lambda value: value is None,
    "sampling_params": is_struct("SamplingParams"),
    "lora_id": or_none(is_str),
    "lora_name": or_none(is_str),
    "routed_dp_rank": or_none(is_int),
    "priority": or_none(is_int),
    "multi_item_delimiter_indices": or_none(is_int_list),
    "token_indices_to_pool": or_none(is_int_list),
}

SENT: Final[dict[str, dict[str, Check]]] = {
    "TokenizerWorkerRegistrationReq": {"worker_ipc_name": is_str, "http_worker_ipc": is_str},
    "AbortReq": {**_TO_ENGINE, "abort_all": is_bool},
    "BatchTokenizedGenerateReqInput": {"batch": is_structs("TokenizedGenerateReqInput")},
    "TokenizedGenerateReqInput": {
        **_TOKENIZED,
        "input_embeds": lambda value: value is None,
        "token_type_ids": lambda value: value is None,
        "return_logprob": is_bool,
        "logprob_start_len": is_int,
        "top_logprobs_num": is_int,
        "token_ids_logprob": or_none(is_int_list),
        "stream": is_bool,
        "return_hidden_states": is_hidden,
        "return_routed_experts": is_bool,
        "routed_experts_start_len": is_int,
        "return_indexer_topk": is_bool,
        "session_id": or_none(is_str),
        "session_params": or_none(is_struct("SessionParams")),
        "custom_logit_processor": or_none(is_str),
        "bootstrap_host": or_none(is_str),
        "bootstrap_port": or_none(is_int),
        "bootstrap_room": or_none(is_int),
        "disagg_prefill_dp_rank": or_none(is_int),
        "routing_key": or_none(is_str),
        "require_reasoning": is_bool,
        "extra_key": or_none(is_str),
        "cache_salt": or_none(is_str),
    },
    "BatchTokenizedEmbeddingReqInput": {"batch": is_structs("TokenizedEmbeddingReqInput")},
    "TokenizedEmbeddingReqInput": {
        **_TOKENIZED,
        "token_type_ids": or_none(is_int_list),
        "dimensions": or_none(is_int),
        "return_pooled_hidden_states": is_bool,
    },
    "SamplingParams": {
        "max_new_tokens": or_none(is_int),
        "stop_token_ids": or_none(is_int_set),
        "temperature": is_float,
        "top_p": is_float,
        "top_k": is_int,
        "min_p": is_float,
        "frequency_penalty": is_float,
        "presence_penalty": is_float,
        "repetition_penalty": is_float,
        "min_new_tokens": is_int,
        "n": is_int,
        "json_schema": or_none(is_str),
        "regex": or_none(is_str),
        "ebnf": or_none(is_str),
        "structural_tag": or_none(is_str),
        "ignore_eos": is_bool,
        "skip_special_tokens": is_bool,
        "spaces_between_special_tokens": is_bool,
        "no_stop_trim": is_bool,
        "stream_interval": or_none(is_int),
        "logit_bias": or_none(is_biases),
        "sampling_seed": or_none(is_int),
        "custom_params": or_none(is_custom),
        "stop_strs": is_str_list,
        "stop_regex_strs": is_str_list,
        "stop_str_max_len": is_int,
        "stop_regex_max_len": is_int,
        "is_normalized": lambda value: value is True,
    },
    "SessionParams": {
        "id": or_none(is_str),
        "rid": or_none(is_str),
        "offset": or_none(is_int),
        "replace": or_none(is_bool),
        "drop_previous_output": or_none(is_bool),
    },
}
"""By message, every field that a shard may set."""

MANDATORY: Final[dict[str, frozenset[str]]] = {
    "TokenizedGenerateReqInput": frozenset({"rid", "http_worker_ipc"}),
    "TokenizedEmbeddingReqInput": frozenset({"rid", "http_worker_ipc"}),
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
        self._checks = {kind: self._checks_of(kind, known) for kind, known in self._known.items()}

    def check(self, kind: str, fields: dict[str, Any]) -> None:
        """Raises WireError unless the engine would read these fields as they are meant."""
        checks = self._checks.get(kind)
        if checks is None:
            raise WireError(f"This engine has no message {kind}.")
        if not self._required[kind] <= fields.keys():
            raise WireError(f"{kind} lacks {', '.join(sorted(self._required[kind] - fields.keys()))}.")
        for name, value in fields.items():
            check = checks.get(name)
            if check is None or not check(value):
                raise self._refusal(kind, name, value)

    def _checks_of(self, kind: str, known: frozenset[str]) -> dict[str, Check]:
        listed = SENT.get(kind) or CONTROL.get(kind)
        if listed is None:
            return dict.fromkeys(known, is_plain)
        return {name: check for name, check in listed.items() if name in known}

    def _refusal(self, kind: str, name: str, value: Any) -> WireError:
        if name not in self._known[kind]:
            return WireError(f"{kind} has no field {name} in this engine.")
        if name not in self._checks[kind]:
            return WireError(f"{kind}.{name} is not one that a shard sets.")
        return WireError(f"{kind}.{name} can't be {_shown(value)}.")


def _shown(value: Any) -> str:
    text = repr(value)
    return f"{text[:80]}…" if len(text) > 80 else text
