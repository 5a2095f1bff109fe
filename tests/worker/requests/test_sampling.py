"""Sampling parameters: SGLang's rules and messages, and no value of a wrong type."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_subgw.errors import RequestRejected
from sglang_subgw.tokenization.tokenizer import ShardTokenizer
from sglang_subgw.wire.codec import codec_for
from sglang_subgw.worker.requests.sampling import normalize
from support.shard_values import VOCAB_SIZE, contract

CONTRACT = contract()
CODEC = codec_for(CONTRACT.wire)


def read(params: dict[str, Any], **features: Any) -> dict[str, Any]:
    facts = contract(**features) if features else CONTRACT
    return normalize(params, facts, ShardTokenizer(facts))


def test_nothing_given_is_sglangs_default() -> None:
    assert read({}) == {
        "max_new_tokens": 128,
        "stop_strs": [],
        "stop_regex_strs": [],
        "stop_str_max_len": 0,
        "stop_regex_max_len": 0,
        "is_normalized": True,
    }
    assert read({"temperature": None, "stop": None, "top_k": None, "n": None}) == read({})


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({"max_new_tokens": None}, {"max_new_tokens": None}),
        ({"temperature": 0}, {"temperature": 1.0, "top_k": 1}),
        ({"temperature": 1e-7, "top_k": 5}, {"temperature": 1.0, "top_k": 1}),
        ({"temperature": 1}, {"temperature": 1.0}),
        ({"top_k": -1}, {"top_k": 1 << 30}),
        ({"stop": "ab"}, {"stop_strs": ["ab"], "stop_str_max_len": 2}),
        ({"stop": ["a", "한"]}, {"stop_strs": ["a", "한"], "stop_str_max_len": 3}),
        ({"stop_regex": "a{2,5}b"}, {"stop_regex_strs": ["a{2,5}b"], "stop_regex_max_len": 6}),
        ({"stop_token_ids": [1, 1, None, 2]}, {"stop_token_ids": {1, 2}}),
        ({"stop_token_ids": [VOCAB_SIZE, -1]}, {}),
        ({"regex": "", "json_schema": ""}, {}),
        ({"json_schema": "{}", "regex": ""}, {"json_schema": "{}"}),
        ({"logit_bias": {"3": 1}}, {"logit_bias": {"3": 1.0}}),
        ({"beam_width": 1}, {}),
        ({"sampling_seed": -5}, {"sampling_seed": -5}),
        ({"custom_params": {"a": [1, None], "b": {"c": 1.5}}}, {"custom_params": {"a": [1, None], "b": {"c": 1.5}}}),
    ],
    ids=str,
)
def test_values_become_the_wires(params: dict[str, Any], expected: dict[str, Any]) -> None:
    assert read(params) == read({}) | expected


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"temperature": -1}, "temperature must be a non-negative finite number, got -1.0."),
        ({"temperature": float("nan")}, "temperature must be a non-negative finite number, got nan."),
        ({"temperature": float("inf")}, "temperature must be a non-negative finite number, got inf."),
        ({"temperature": "hot"}, "temperature must be a number, got 'hot'."),
        ({"temperature": True}, "temperature must be a number, got True."),
        ({"temperature": 10**400}, "temperature must be a non-negative finite number, got inf."),
        ({"top_p": 0}, "top_p must be in (0, 1], got 0.0."),
        ({"top_p": 1.1}, "top_p must be in (0, 1], got 1.1."),
        ({"min_p": -0.1}, "min_p must be in [0, 1], got -0.1."),
        ({"top_k": 0}, "top_k must be -1 (disable) or at least 1, got 0."),
        ({"top_k": 1.5}, "top_k must be an integer, got 1.5."),
        ({"frequency_penalty": 3}, "frequency_penalty must be in [-2, 2], got 3.0."),
        ({"presence_penalty": -2.5}, "presence_penalty must be in [-2, 2], got -2.5."),
        ({"repetition_penalty": 0}, "repetition_penalty must be in (0, 2] (1.0 = no penalty), got 0.0."),
        ({"min_new_tokens": -1}, "min_new_tokens must be in [0, max_new_tokens], got -1."),
        ({"max_new_tokens": -1}, "max_new_tokens must be at least 0, got -1."),
        ({"max_new_tokens": 5, "min_new_tokens": 6}, "min_new_tokens must be in [0, max_new_tokens(5)], got 6."),
        ({"min_new_tokens": 129}, "min_new_tokens must be in [0, max_new_tokens(128)], got 129."),
        ({"max_new_tokens": 2**63}, f"max_new_tokens must be in [-2**63, 2**63 - 1], got {2**63}."),
        ({"max_new_tokens": True}, "max_new_tokens must be an integer, got True."),
        ({"logit_bias": {"300": 1}}, "logit_bias must has keys in [0, 299], got 300."),
        ({"logit_bias": {"x": 1}}, "logit_bias keys must be token ids, got 'x'."),
        ({"logit_bias": {"1": "y"}}, "logit_bias must be a number, got 'y'."),
        ({"sampling_seed": 1.5}, "sampling_seed must be an integer, got float."),
        ({"sampling_seed": 2**63}, f"sampling_seed must be in [-2**63, 2**63 - 1], got {2**63}."),
        ({"json_schema": "{}", "regex": "a"}, "Only one of json_schema, regex, ebnf, or structural_tag can be set."),
        ({"json_schema": {}}, "json_schema must be a string, got {}."),
        ({"stop": ["x"] * 33}, "at most 32 stop strings are allowed, got 33"),
        ({"stop": [1]}, "stop must be a string, got 1."),
        ({"stop": "\ud800"}, "stop must be valid Unicode text, got '\\ud800'."),
        ({"stop_regex": ["x"] * 33}, "at most 32 stop_regex patterns are allowed, got 33"),
        ({"stop_regex": "x" * 257}, "stop_regex is 257 bytes, over the 256-byte limit"),
        ({"stop_token_ids": 3}, "stop_token_ids must be a list of integers, got 3."),
        ({"stop_token_ids": ["a"]}, "stop_token_ids must be an integer, got 'a'."),
        ({"stream_interval": 0}, "stream_interval must be at least 1, got 0."),
        ({"ignore_eos": 1}, "ignore_eos must be a boolean, got 1."),
        ({"custom_params": {"a": [[1]]}}, "custom_params must be an object of scalars, or of lists or objects of"),
        ({"beam_width": 2}, "beam_width: beam search is not implemented here."),
        ({"watermark": {}}, "watermark is not implemented here."),
        ({"stop_strs": ["x"]}, "Unknown sampling parameter 'stop_strs'."),
        ({"is_normalized": True}, "Unknown sampling parameter 'is_normalized'."),
        ({"temprature": 1}, "Unknown sampling parameter 'temprature'."),
    ],
    ids=str,
)
def test_what_breaks_a_rule_is_refused(params: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestRejected) as caught:
        read(params)
    assert caught.value.message.startswith(message)
    assert caught.value.status == 400


@pytest.mark.parametrize("pattern", ["(", "[", "*a", "a{3,1}", "(?P<x>a)(?P<x>b)", "(" * 200])
def test_a_broken_stop_pattern_is_refused(pattern: str) -> None:
    with pytest.raises(RequestRejected, match="not a regular expression"):
        read({"stop_regex": pattern})


def test_the_servers_preferences_lie_under_the_clients() -> None:
    facts = contract(model={"preferred_sampling_params": {"temperature": 0.3, "top_p": 0.5}})
    read_in = normalize({"top_p": 0.9}, facts, ShardTokenizer(facts))
    assert (read_in["temperature"], read_in["top_p"]) == (0.3, 0.9)


@pytest.mark.parametrize("params", [{"stop": "x"}, {"stop_regex": "x"}, {"min_new_tokens": 1}])
def test_text_stops_need_a_tokenizer_in_the_engine(params: dict[str, Any]) -> None:
    with pytest.raises(RequestRejected, match="skip_tokenizer_init=True"):
        read(params, skip_tokenizer_init=True)


ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
NAMES = [name for name, _ in CONTRACT.wire.schema["SamplingParams"]]


@given(params=st.dictionaries(st.sampled_from(NAMES), ANY, max_size=3))
def test_any_json_is_refused_or_can_be_sent(params: dict[str, Any]) -> None:
    try:
        fields = read(params)
    except RequestRejected:
        return
    assert CODEC.encode("SamplingParams", fields)
