"""Events of /generate are what the whole answer so far is, however it came."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_subgw.http.core.sse import event
from sglang_subgw.http.native.generate_events import GenerateEvents
from sglang_subgw.worker.answers.facts import AnswerFacts
from sglang_subgw.worker.answers.logprobs import Logprobs
from sglang_subgw.worker.answers.sample import Sample

STEPS = st.lists(
    st.tuples(
        st.text(alphabet=st.one_of(st.characters(exclude_categories=["Cs"]), st.sampled_from('"\\\n\x00é한🙂'))),
        st.lists(st.integers(0, 2**31), max_size=3),
        st.booleans(),
        st.one_of(st.just({}), st.deferred(lambda: OTHERS)),
        st.sampled_from(["default", "default", "default", "second"]),
    ),
    max_size=12,
)


def columns(text: str, ids: list[int], count: int, *, reason: dict[str, Any] | None = None, **more: Any) -> Any:
    return {
        "rids": ["r"],
        "finished_reasons": [reason],
        "output_strs": [text],
        "output_ids": [ids],
        "prompt_tokens": [3],
        "completion_tokens": [count],
        "cached_tokens": [0],
        "reasoning_tokens": [0],
        "retraction_counts": [0],
        "image_tokens": [0],
        "dp_ranks": [1],
        **more,
    }


OTHERS = st.fixed_dictionaries(
    {},
    optional={
        "cached_tokens": st.sampled_from([[0], [5], [None], [], None]),
        "reasoning_tokens": st.sampled_from([[0], [2]]),
        "retraction_counts": st.sampled_from([[0], [1]]),
        "image_tokens": st.sampled_from([[0], [7]]),
        "dp_ranks": st.sampled_from([[0], [1], [None], [], None]),
        "cached_tokens_details": st.sampled_from([[None], [{"device": 3}], [{"device": 4}], None]),
        "customized_info": st.sampled_from([None, {"mine": [[1]]}]),
    },
)
"""Columns besides the text, which mostly stay as they are from one step to the next."""


def parsed(data: bytes) -> dict[str, Any]:
    assert data.startswith(b"data: ")
    assert data.endswith(b"\n\n")
    answer: dict[str, Any] = json.loads(data.removeprefix(b"data: "))
    answer["meta_info"].pop("response_sent_to_client_ts", None)
    return answer


@given(steps=STEPS, single=st.booleans(), detailed=st.booleans(), ended=st.booleans())
def test_each_is_the_answer_so_far(
    steps: list[tuple[str, list[int], bool, dict[str, Any], str]],
    single: bool,
    detailed: bool,
    ended: bool,
) -> None:
    facts = AnswerFacts()
    sample = Sample("r", "mine", 1, facts, stream=True, logprobs=Logprobs() if detailed else None)
    events = GenerateEvents(single=single, incremental=False)
    index = {} if single else {"index": 1}
    count = 0
    for number, (text, ids, is_read, others, facts.weight_version) in enumerate(steps):
        count += len(ids)
        reason = {"type": "stop"} if ended and number == len(steps) - 1 else None
        sample.on_output(columns(text, ids, count, reason=reason, **others), 0)
        # A client that reads slowly gets several steps as one.
        if is_read or reason is not None:
            assert parsed(events.news(sample)) == parsed(event({**sample.output(), **index}))


@pytest.mark.parametrize("without", ["output_strs", "dp_ranks"])
def test_columns_that_an_engine_leaves_out_are_left_out(without: str) -> None:
    sample = Sample("r", "r", 0, AnswerFacts(), stream=True)
    row = columns("a", [1], 1)
    del row[without]
    sample.on_output(row, 0)
    answer = parsed(GenerateEvents(single=True, incremental=False).news(sample))
    assert answer == parsed(event(sample.output()))
    assert ("text" in answer, "dp_rank" in answer["meta_info"]) == (without != "output_strs", without != "dp_ranks")
