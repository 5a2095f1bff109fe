"""Sampling parameters against SGLang's own code: the same values, the same refusals."""

from __future__ import annotations

import warnings
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sglang_subgw.errors import RequestRejected
from sglang_subgw.worker.requests.sampling import normalize
from support.shard_values import VOCAB_SIZE, contract

pytestmark = pytest.mark.sglang

ON_FIXTURES = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=150)


@pytest.fixture(scope="session")
def sglang_srt() -> Any:
    """SGLang's modules that these tests compare with."""
    pytest.importorskip("sglang")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from sglang.srt.sampling import sampling_params
    return SimpleNamespace(sampling=sampling_params)


class ByteTokens:
    """Both sides' tokenizer: one id per byte."""

    loaded = True

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return list(text.encode())


NUMBER = st.sampled_from([-3, -1, -0.5, 0, 1e-7, 0.5, 1, 1.5, 2, 5])
PARAMS = st.fixed_dictionaries(
    {},
    optional={
        "max_new_tokens": st.none() | st.integers(-2, 300),
        "min_new_tokens": st.none() | st.integers(-2, 300),
        "temperature": st.none() | NUMBER,
        "top_p": st.none() | NUMBER,
        "top_k": st.none() | st.integers(-2, 5),
        "min_p": st.none() | NUMBER,
        "frequency_penalty": NUMBER,
        "presence_penalty": NUMBER,
        "repetition_penalty": st.none() | NUMBER,
        "stop": st.none() | st.text("ab한", max_size=3) | st.lists(st.text("ab한", max_size=3), max_size=34),
        "stop_token_ids": st.none() | st.lists(st.integers(0, VOCAB_SIZE - 1), max_size=3),
        "stop_regex": st.none() | st.sampled_from(["a+b", "(ab|c){2,5}", "x" * 257, r"^\d?$", "(?=a)"]),
        "json_schema": st.sampled_from([None, "", "{}"]),
        "regex": st.sampled_from([None, "", "a"]),
        "ebnf": st.sampled_from([None, "", "root ::= a"]),
        "logit_bias": st.none() | st.dictionaries(st.integers(-1, VOCAB_SIZE).map(str), st.floats(-5, 5), max_size=2),
        "sampling_seed": st.none() | st.integers(-(2**64), 2**64),
        "ignore_eos": st.none() | st.booleans(),
        "n": st.none() | st.integers(1, 3),
    },
)


@ON_FIXTURES
@given(params=PARAMS)
def test_sampling_parameters_are_sglangs(sglang_srt: Any, params: dict[str, Any]) -> None:
    stock = sglang_srt.sampling.SamplingParams
    expected = problem = None
    try:
        expected = stock(**params)
        expected.normalize(ByteTokens())
        expected.verify(VOCAB_SIZE)
    except ValueError as exc:
        problem = str(exc)
    try:
        got = stock(**normalize(params, contract(), ByteTokens()))  # type: ignore[arg-type]
    except RequestRejected:
        got = None
    # Of several faults each names another one first, so only whether it is refused is compared here.
    assert got == (None if problem else expected)


@pytest.mark.parametrize(
    "params",
    [
        {"temperature": -0.5},
        {"top_p": 1.5},
        {"min_p": 1.5},
        {"top_k": 0},
        {"frequency_penalty": 2.5},
        {"presence_penalty": -2.5},
        {"repetition_penalty": 2.5},
        {"min_new_tokens": -1},
        {"min_new_tokens": 200},
        {"max_new_tokens": -1},
        {"logit_bias": {"300": 1.0}},
        {"sampling_seed": 2**63},
        {"json_schema": "{}", "regex": "a"},
        {"stop": ["x"] * 33},
        {"stop_regex": ["x"] * 33},
        {"stop_regex": "x" * 257},
    ],
    ids=str,
)
def test_messages_are_sglangs(sglang_srt: Any, params: dict[str, Any]) -> None:
    stock = sglang_srt.sampling.SamplingParams(**params)

    def check() -> None:
        stock.normalize(ByteTokens())
        stock.verify(VOCAB_SIZE)

    with pytest.raises(ValueError, match=r".") as expected:
        check()
    with pytest.raises(RequestRejected) as got:
        normalize(params, contract(), ByteTokens())  # type: ignore[arg-type]
    assert got.value.message == str(expected.value)
