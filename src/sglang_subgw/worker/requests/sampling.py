"""Sampling parameters: SGLang's defaults, rules and messages, applied in the shard.

The engine checks nothing of this again, and a value of a wrong type would end it for every client.
"""

from __future__ import annotations

from typing import Any, Final

from ...contract import EngineContract
from ...errors import RequestRejected
from ...tokenization.tokenizer import ShardTokenizer
from .plan import wrong
from .sampling_values import READERS, integer
from .stop_regex import max_length

TOP_K_ALL: Final = 1 << 30
_DEFAULT_MAX_NEW_TOKENS: Final = 128
_EPSILON: Final = 1e-6
_MAX_STOPS: Final = 32
_MAX_STOP_REGEX_BYTES: Final = 256
_MAX_REASONING_END_IDS: Final = 32
_REASONING_END_IDS: Final = "__sglang_reasoning_end_token_ids"


def normalize(params: dict[str, Any], contract: EngineContract, tokenizer: ShardTokenizer) -> dict[str, Any]:
    """The wire fields of SamplingParams for a client's parameters; raises RequestRejected with SGLang's message."""
    if not isinstance(params, dict):
        raise wrong("sampling_params", "an object", params)
    if preferred := contract.model.preferred_sampling_params:
        params = {**preferred, **params}
    out: dict[str, Any] = {}
    for name, value in params.items():
        read = READERS.get(name)
        if read is None:
            raise RequestRejected(f"Unknown sampling parameter {name!r}.", param=name)
        if value is not None:
            out[name] = read(name, value)
    # None asks for as much as fits.
    unlimited = "max_new_tokens" in params and params["max_new_tokens"] is None
    if not unlimited:
        out.setdefault("max_new_tokens", _DEFAULT_MAX_NEW_TOKENS)
    _complete(out)
    skip_tokenizer = contract.features.skip_tokenizer_init
    _set_stops(out, None if skip_tokenizer else tokenizer, has_tokenizer=not skip_tokenizer)
    _verify(out, contract.model.vocab_size)
    if unlimited:
        out["max_new_tokens"] = None
    # A token the model can't produce never stops it, but as an index into the logits it would end the scheduler.
    stop_ids = {token for token in out.pop("stop_token_ids", ()) if 0 <= token < contract.model.vocab_size}
    if stop_ids:
        out["stop_token_ids"] = stop_ids
    out["is_normalized"] = True
    return out


def sample_count(params: dict[str, Any]) -> int:
    """How many samples the parameters ask for; raises RequestRejected for less than one."""
    count = params.get("n")
    if count is None:
        return 1
    number: int = integer("n", count)
    if number < 1:
        raise RequestRejected(f"n must be at least 1, got {number}.", param="n")
    return number


def _complete(out: dict[str, Any]) -> None:
    for grammar in ("json_schema", "regex", "ebnf", "structural_tag"):
        if not out.get(grammar):
            out.pop(grammar, None)
    if out.get("beam_width", 1) != 1:
        raise RequestRejected("beam_width: beam search is not implemented here.", param="beam_width")
    out.pop("beam_width", None)
    if 0 <= out.get("temperature", 1.0) < _EPSILON:
        # SGLang's way to say greedy.
        out["temperature"] = 1.0
        out["top_k"] = 1
    if out.get("top_k") == -1:
        out["top_k"] = TOP_K_ALL


def _set_stops(out: dict[str, Any], tokenizer: ShardTokenizer | None, *, has_tokenizer: bool) -> None:
    stops = out.pop("stop", [])
    patterns = out.pop("stop_regex", [])
    if len(stops) > _MAX_STOPS:
        raise RequestRejected(f"at most {_MAX_STOPS} stop strings are allowed, got {len(stops)}", param="stop")
    if len(patterns) > _MAX_STOPS:
        raise RequestRejected(
            f"at most {_MAX_STOPS} stop_regex patterns are allowed, got {len(patterns)}", param="stop_regex"
        )
    longest = 0
    for pattern in patterns:
        size = len(pattern.encode())
        if size > _MAX_STOP_REGEX_BYTES:
            raise RequestRejected(
                f"stop_regex is {size} bytes, over the {_MAX_STOP_REGEX_BYTES}-byte limit", param="stop_regex"
            )
        try:
            longest = max(longest, max_length(pattern))
        except ValueError as exc:
            raise RequestRejected(str(exc), param="stop_regex") from None
    if not has_tokenizer:
        _refuse_without_tokenizer(stops, patterns, out.get("min_new_tokens", 0))
    out["stop_strs"] = stops
    out["stop_regex_strs"] = patterns
    out["stop_str_max_len"] = max((_token_count(stop, tokenizer) for stop in stops), default=0)
    out["stop_regex_max_len"] = longest


def _token_count(stop: str, tokenizer: ShardTokenizer | None) -> int:
    if tokenizer is None or not tokenizer.loaded:
        # An upper bound will do: it only sizes the window that the engine decodes.
        return len(stop.encode())
    return len(tokenizer.encode(stop, add_special_tokens=False))


def _refuse_without_tokenizer(stops: list[str], patterns: list[str], min_new_tokens: int) -> None:
    for name, value in (("stop", stops), ("stop_regex", patterns)):
        if value:
            raise RequestRejected(
                f"{name}={value!r} is unavailable when skip_tokenizer_init=True "
                "(requires tokenizer to decode tokens to text for matching).",
                param=name,
            )
    if min_new_tokens > 0:
        raise RequestRejected(
            f"min_new_tokens={min_new_tokens} is unavailable when skip_tokenizer_init=True "
            "(requires tokenizer for eos_token_id).",
            param="min_new_tokens",
        )


def _verify(out: dict[str, Any], vocab_size: int) -> None:
    def check(name: str, holds: bool, rule: str) -> None:
        if not holds:
            raise RequestRejected(f"{name} {rule}, got {out[name]}.", param=name)

    # What was left out has a default that is in range.
    if "temperature" in out:
        check("temperature", out["temperature"] >= 0.0, "must be a non-negative finite number")
    if "top_p" in out:
        check("top_p", 0.0 < out["top_p"] <= 1.0, "must be in (0, 1]")
    if "min_p" in out:
        check("min_p", 0.0 <= out["min_p"] <= 1.0, "must be in [0, 1]")
    if "top_k" in out:
        check("top_k", out["top_k"] >= 1, "must be -1 (disable) or at least 1")
    for name in ("frequency_penalty", "presence_penalty"):
        if name in out:
            check(name, -2.0 <= out[name] <= 2.0, "must be in [-2, 2]")
    if "repetition_penalty" in out:
        check("repetition_penalty", 0.0 < out["repetition_penalty"] <= 2.0, "must be in (0, 2] (1.0 = no penalty)")
    least = out.get("min_new_tokens", 0)
    if least < 0:
        check("min_new_tokens", False, "must be in [0, max_new_tokens]")
    most = out.get("max_new_tokens")
    if most is not None:
        check("max_new_tokens", most >= 0, "must be at least 0")
        if least > most:
            check("min_new_tokens", False, f"must be in [0, max_new_tokens({most})]")
    if "stream_interval" in out:
        check("stream_interval", out["stream_interval"] >= 1, "must be at least 1")
    for token in out.get("logit_bias", ()):
        _check_bias_key(token, vocab_size)
    _check_reasoning_end_ids(out.get("custom_params", {}), vocab_size)
    if sum(name in out for name in ("json_schema", "regex", "ebnf", "structural_tag")) > 1:
        raise RequestRejected("Only one of json_schema, regex, ebnf, or structural_tag can be set.")


def _check_bias_key(token: str, vocab_size: int) -> None:
    try:
        number = int(token)
    except ValueError:
        raise RequestRejected(f"logit_bias keys must be token ids, got {token!r}.", param="logit_bias") from None
    if not 0 <= number < vocab_size:
        raise RequestRejected(f"logit_bias must has keys in [0, {vocab_size - 1}], got {token}.", param="logit_bias")


def _check_reasoning_end_ids(custom: dict[str, Any], vocab_size: int) -> None:
    if _REASONING_END_IDS not in custom:
        return
    ids = custom[_REASONING_END_IDS]
    if (
        not isinstance(ids, list)
        or not 0 < len(ids) <= _MAX_REASONING_END_IDS
        or any(type(token) is not int or not 0 <= token < vocab_size for token in ids)
    ):
        raise RequestRejected(
            "request reasoning end token IDs must be a non-empty, vocabulary-bounded list of at most "
            f"{_MAX_REASONING_END_IDS} integers",
            param="custom_params",
        )
