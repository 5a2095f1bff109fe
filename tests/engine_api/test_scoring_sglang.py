"""Scores against SGLang's own code: the same prompts, the same refusals, the same results."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import warnings
from types import SimpleNamespace
from typing import Any, Self

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sglang_subgw.engine_api.scoring import ScoringCalls
from sglang_subgw.errors import RequestError
from support.shard_values import contract
from support.stock.embedding import VOCAB_SIZE, Tokens, scripted_answers, stock_scorer

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(240)]

EXTRACTION = ord("#")


@pytest.fixture(scope="session")
def srt() -> Any:
    """SGLang's module that scores."""
    pytest.importorskip("sglang")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from sglang.srt.managers import tokenizer_manager_score_mixin
    return SimpleNamespace(score=tokenizer_manager_score_mixin)


class ScriptedCall:
    """A call that is answered at once."""

    def __init__(self, request: Any) -> None:
        self.samples = [SimpleNamespace(output=lambda answer=answer: answer) for answer in scripted_answers(request)]

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        pass

    async def wait(self) -> None:
        pass


class ScriptedWorker:
    """A worker that keeps the requests that it was given."""

    def __init__(self, facts: Any) -> None:
        self.contract = facts
        self.tokenizer = Tokens()
        self.requests: list[Any] = []

    async def submit(self, request: Any) -> ScriptedCall:
        self.requests.append(request)
        return ScriptedCall(request)


def own_calls(*, is_generation: bool, together: bool, architectures: tuple[str, ...]) -> ScoringCalls:
    made = contract(enable_mis=together, disable_radix_cache=True, chunked_prefill_size=-1)
    facts = {
        "is_generation": is_generation,
        "vocab_size": VOCAB_SIZE,
        "architectures": architectures,
        "scores_positions": architectures == ("LlamaForSequenceClassification",),
        "is_cross_encoder": architectures == ("BertForSequenceClassification",),
    }
    made = dataclasses.replace(made, model=dataclasses.replace(made.model, **facts))
    return ScoringCalls(ScriptedWorker(made))  # type: ignore[arg-type]


def both(srt: Any, arguments: dict[str, Any], architecture: str, *, is_generation: bool, together: bool) -> Any:
    """Both sides' results, or refusals."""
    calls = own_calls(is_generation=is_generation, together=together, architectures=(architecture,))
    with pytest.MonkeyPatch.context() as monkeypatch:
        config = SimpleNamespace(architectures=[architecture])
        scorer = stock_scorer(srt, monkeypatch, is_generation=is_generation, together=together, hf_config=config)
        expected: Any
        try:
            expected = asyncio.run(scorer.score_request(**arguments))
        except (ValueError, RuntimeError) as exc:
            expected = str(exc)
    got: Any
    try:
        got = asyncio.run(calls.async_score(**arguments))
    except RequestError as exc:
        got = exc.message
    return got, expected


def plain(value: Any) -> Any:
    """Tensors as lists, all numbers as pytest compares them."""
    if isinstance(value, list):
        return [plain(item) for item in value]
    if hasattr(value, "tolist"):
        value = value.tolist()
        return plain(value)
    return pytest.approx(value, rel=1e-6, abs=1e-12) if isinstance(value, float) else value


TEXT = st.text("ab #", max_size=4)
SOME_TEXT = st.text("ab #", min_size=1, max_size=4)
IDS = st.lists(st.sampled_from([5, 6, 7, EXTRACTION]), max_size=4)
SOME_IDS = st.lists(st.sampled_from([5, 6, 7, EXTRACTION]), min_size=1, max_size=4)
LABELS = st.lists(st.integers(1, 9), min_size=1, max_size=3, unique=True)
ARGUMENTS = st.fixed_dictionaries(
    {
        "query": st.one_of(st.none(), TEXT, IDS),
        "items": st.one_of(
            SOME_TEXT, st.lists(SOME_TEXT, min_size=1, max_size=3), st.lists(SOME_IDS, min_size=1, max_size=3)
        ),
        "label_token_ids": st.one_of(LABELS, st.lists(LABELS, min_size=1, max_size=3)),
    },
    optional={
        "apply_softmax": st.booleans(),
        "item_first": st.booleans(),
        "temperature": st.sampled_from([0.5, 1.0, 2]),
        "return_token_logprobs": st.booleans(),
        "return_pooled_hidden_states": st.booleans(),
        "score_extraction_token_id": st.sampled_from([EXTRACTION, EXTRACTION, 5]),
    },
)
MODELS = list(
    itertools.product(
        ["LlamaForCausalLM", "LlamaForSequenceClassification", "BertForSequenceClassification"], [False, True]
    )
)


@pytest.mark.parametrize(("architecture", "together"), MODELS, ids=str)
@given(arguments=ARGUMENTS)
@example(arguments={"query": [], "items": ["#"], "label_token_ids": [1], "score_extraction_token_id": EXTRACTION})
def test_results_and_refusals_are_sglangs(
    srt: Any, architecture: str, together: bool, arguments: dict[str, Any]
) -> None:
    got, expected = both(
        srt, arguments, architecture, is_generation=architecture.endswith("CausalLM"), together=together
    )
    if isinstance(arguments["query"], str) and isinstance(arguments["items"][0], list) and isinstance(got, str):
        # SGLang writes the ids into the text; here that is refused.
        return
    if isinstance(expected, str):
        # Of several faults each may name another one first.
        assert isinstance(got, str), expected
        return
    assert not isinstance(got, str), got
    assert got.scores == plain(expected.scores)
    assert got.prompt_tokens == expected.prompt_tokens
    assert got.pooled_hidden_states == plain(expected.pooled_hidden_states)
    assert got.token_logprobs == plain(expected.token_logprobs)


REFUSED: list[dict[str, Any]] = [
    {"temperature": 0.0, "apply_softmax": True},
    {"temperature": float("inf"), "apply_softmax": True},
    {"temperature": 2.0},
    {"items": None},
    {"label_token_ids": None},
    {"label_token_ids": []},
    {"label_token_ids": [[]]},
    {"label_token_ids": [[1], [2]]},
    {"label_token_ids": [-1]},
    {"label_token_ids": [1, 1]},
    {"label_token_ids": [VOCAB_SIZE]},
    {"return_pooled_hidden_states": True},
    {"score_extraction_token_id": EXTRACTION, "item_first": True},
    {"score_extraction_token_id": EXTRACTION},
    {"score_extraction_token_id": EXTRACTION, "query": "#"},
]


@pytest.mark.parametrize("changes", REFUSED, ids=str)
def test_refusals_are_in_sglang_s_words(srt: Any, changes: dict[str, Any]) -> None:
    arguments = {"query": "q", "items": ["a"], "label_token_ids": [1, 2], **changes}
    got, expected = both(srt, arguments, "LlamaForCausalLM", is_generation=True, together=False)
    assert isinstance(expected, str)
    assert got == expected


@pytest.mark.parametrize("architecture", ["BertForSequenceClassification", "LlamaModel"])
@pytest.mark.parametrize("name", ["return_token_logprobs", "return_pooled_hidden_states", "score_extraction_token_id"])
def test_refusals_for_a_classifier_are_in_sglang_s_words(srt: Any, architecture: str, name: str) -> None:
    value = EXTRACTION if name == "score_extraction_token_id" else True
    got, expected = both(
        srt, {"query": "q", "items": ["#"], name: value}, architecture, is_generation=False, together=False
    )
    if isinstance(expected, str):
        assert got == expected
    else:
        assert got.pooled_hidden_states == plain(expected.pooled_hidden_states)


@pytest.mark.parametrize("items", ["", []])
def test_no_items_are_no_scores(srt: Any, items: Any) -> None:
    arguments = {"items": items, "label_token_ids": [1], "return_token_logprobs": True}
    got, expected = both(srt, arguments, "LlamaForCausalLM", is_generation=True, together=False)
    assert dataclasses.asdict(got) == dataclasses.asdict(expected)
