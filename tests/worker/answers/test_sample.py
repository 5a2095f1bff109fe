"""Samples: what the engine sends, however it is split, gives the answers that SGLang gives."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from sglang_subgw.errors import EngineUnavailable
from sglang_subgw.wire.message import Message, TimeStats
from sglang_subgw.worker.answers.facts import AnswerFacts
from sglang_subgw.worker.answers.logprobs import Logprobs
from support.shard_values import columns, sample

STOP = {"type": "stop", "matched": 2}
TIMES = ("e2e_latency", "response_sent_to_client_ts")


def timeless(out: dict[str, Any]) -> dict[str, Any]:
    return {**out, "meta_info": {key: value for key, value in out["meta_info"].items() if key not in TIMES}}


def test_answers_are_sglangs() -> None:
    one = sample()
    one.on_output(columns(["r"], output_strs=["He"]), 0)
    one.on_output(
        columns(["r"], output_strs=["llo"], output_ids=[[2, 3]], completion_tokens=[3], finished_reasons=[STOP]), 0
    )
    out = one.output()
    assert list(out) == ["text", "output_ids", "meta_info"]
    assert (out["text"], out["output_ids"]) == ("Hello", [1, 2, 3])
    assert list(out["meta_info"]) == [
        "id",
        "finish_reason",
        "prompt_tokens",
        "weight_version",
        "num_retractions",
        "reasoning_tokens",
        "completion_tokens",
        "cached_tokens",
        "e2e_latency",
        "response_sent_to_client_ts",
    ]
    assert out["meta_info"]["finish_reason"] == STOP
    assert (one.finished, one.completion_tokens, one.prompt_tokens) == (True, 3, 3)


def test_a_stream_tells_once_when_it_began() -> None:
    one = sample(stream=True)
    one.on_output(columns(["r"]), 0)
    assert "response_sent_to_client_ts" in one.output()["meta_info"]
    one.on_output(columns(["r"], finished_reasons=[STOP]), 0)
    meta = one.output()["meta_info"]
    assert "response_sent_to_client_ts" not in meta
    assert "e2e_latency" in meta


def test_everything_that_a_message_can_hold() -> None:
    facts = AnswerFacts(weight_version="w0", speculative=True, draft_tokens=4)
    one = sample(facts=facts, prompt_token_ids=[7, 8])
    one.on_output(
        columns(
            ["r"],
            finished_reasons=[STOP],
            completion_tokens=[9],
            weight_versions=[
                [
                    Message("WeightVersionSpan", {"version": "a", "start": 0, "end": 4}),
                    Message("WeightVersionSpan", {"version": "b", "start": 4, "end": 20}),
                    Message("WeightVersionSpan", {"version": "c", "start": 20, "end": 30}),
                ]
            ],
            cached_tokens_details=[{"device": 1}],
            customized_info={"score": [[0.5]]},
            image_tokens=[3],
            audio_tokens=[0],
            output_hidden_states=[[[0.1]]],
            routed_experts=["AA=="],
            indexer_topk=[None],
            dp_ranks=[1],
            spec_verify_ct=[3],
            spec_num_correct_drafts=[6],
            spec_num_cap_tokens=[6],
            spec_correct_drafts_histogram=[[1, 2]],
            spec_cap_lens_histogram=[[]],
        ),
        0,
    )
    out = one.output()
    assert out["prompt_token_ids"] == [7, 8]
    meta = timeless(out)["meta_info"]
    assert meta == {
        "id": "r",
        "finish_reason": STOP,
        "prompt_tokens": 3,
        "weight_version": "b",
        "num_retractions": 0,
        "reasoning_tokens": 0,
        "completion_tokens": 9,
        "cached_tokens": 0,
        "weight_versions": [{"version": "a", "start": 0, "end": 4}, {"version": "b", "start": 4, "end": 9}],
        "cached_tokens_details": {"device": 1},
        "score": [0.5],
        "image_tokens": 3,
        "hidden_states": [[0.1]],
        "routed_experts": "AA==",
        "dp_rank": 1,
        "spec_accept_rate": 6 / 9,
        "spec_accept_length": 3.0,
        "spec_num_correct_drafts": 6,
        "spec_num_proposed_drafts": 9,
        "spec_verify_ct": 3,
        "spec_cap_length": 2.0,
        "spec_correct_drafts_histogram": [1, 2],
    }


def test_times_are_there_with_metrics_only() -> None:
    stats = TimeStats()
    vars(stats).update(forward_entry_time=5.0, prefill_finished_time=6.0, queue_duration_s=0.25)
    without, with_metrics = sample(), sample(facts=AnswerFacts(enable_metrics=True))
    for one in (without, with_metrics):
        one.sent_at = one.created_at
        one.on_output(columns(["r"], time_stats=[stats], finished_reasons=[STOP]), 0)
    new = with_metrics.output()["meta_info"].keys() - without.output()["meta_info"].keys()
    assert {
        "forward_entry_time",
        "prefill_finished_time",
        "queue_time",
        "request_received_ts",
        "api_server_dispatch_finish_ts",
        "request_finished_ts",
    } <= new
    assert with_metrics.output()["meta_info"]["queue_time"] == 0.25


def test_an_abort_that_came_back_ends_it() -> None:
    one = sample()
    one.on_output(columns(["r"]), 0)
    one.on_abort({"rid": "r", "abort_message": "gone"})
    out = one.output()
    assert timeless(out) == {
        "text": "x",
        "output_ids": [1],
        "meta_info": {
            "id": "r",
            "finish_reason": {"type": "abort", "message": "gone"},
            "weight_version": "default",
            "completion_tokens": 1,
        },
    }
    assert one.finished
    assert one.error is None


def test_an_abort_with_a_status_is_an_error() -> None:
    for reason, status in (
        ({"type": "abort", "message": "full", "status_code": 503}, 503),
        ({"type": "abort", "message": "bad", "status_code": 400}, 400),
    ):
        one = sample()
        one.on_abort({"finished_reason": reason})
        assert one.error is not None
        assert (one.error.status, one.error.message) == (status, reason["message"])
    for reason in ({"type": "abort", "message": "m", "status_code": None}, {"type": "abort", "message": "m"}):
        one = sample()
        one.on_output(columns(["r"], finished_reasons=[reason]), 0)
        assert one.finished
        assert one.error is None


def test_a_failure_ends_it_once() -> None:
    one = sample()
    one.fail(EngineUnavailable("gone"))
    one.fail(EngineUnavailable("again"))
    assert one.error is not None
    assert one.error.message == "gone"
    assert one.output()["meta_info"]["finish_reason"] == {"type": "abort", "message": "gone", "status_code": 503}


def test_without_a_tokenizer_there_is_no_text() -> None:
    one = sample()
    message = columns(["r"], finished_reasons=[STOP])
    del message["output_strs"]
    one.on_output(message, 0)
    assert list(one.output()) == ["output_ids", "meta_info"]


TOKEN = st.integers(0, 99)
LOGPROB = st.floats(-20, 0)
STEP = st.lists(
    st.tuples(
        st.sampled_from(["a", "é", "", "한", "xy"]), TOKEN, LOGPROB, st.lists(st.tuples(LOGPROB, TOKEN), max_size=2)
    ),
    min_size=1,
    max_size=3,
)


def fed(steps: list[Any], *, rows: int, row: int, **options: Any) -> Any:
    """A sample that got its steps as row `row` of messages with `rows` rows."""
    one = sample(logprobs=Logprobs(top=2, token_ids=True, texts=lambda ids: [f"<{token}>" for token in ids]), **options)
    done = 0
    for number, step in enumerate(steps):
        done += len(step)
        message = columns(
            [f"r{i}" for i in range(rows)],
            output_strs=[None] * row + ["".join(text for text, *_ in step)],
            output_ids=[[]] * row + [[token for _, token, *_ in step]],
            completion_tokens=[done] * rows,
            finished_reasons=[STOP if number == len(steps) - 1 else None] * rows,
            customized_info={"k": [None] * row + [[token for _, token, *_ in step]]},
            output_token_logprobs_val=[None] * row + [[logprob for *_, logprob, _ in step]],
            output_token_logprobs_idx=[None] * row + [[token for _, token, *_ in step]],
            output_top_logprobs_val=[[]] * row + [[[value for value, _ in top] for *_, top in step]],
            output_top_logprobs_idx=[[]] * row + [[[token for _, token in top] for *_, top in step]],
            output_token_ids_logprobs_val=[[]] * row + [[[-1.0] for _ in step]],
            output_token_ids_logprobs_idx=[[]] * row + [[[5] for _ in step]],
            input_token_logprobs_val=None if number else [None] * row + [[None, -2.0]],
            input_token_logprobs_idx=None if number else [None] * row + [[4, 5]],
            input_top_logprobs_val=[] if number else [[]] * row + [[None, [-2.0]]],
            input_top_logprobs_idx=[] if number else [[]] * row + [[None, [5]]],
        )
        yield message
        one.on_output(message, row)
        yield one


def final(steps: list[Any], **options: Any) -> Any:
    *_, one = fed(steps, **options)
    return one


@given(steps=st.lists(STEP, min_size=1, max_size=6), rows=st.integers(1, 3))
def test_how_outputs_are_split_makes_no_difference(steps: list[Any], rows: int) -> None:
    grouped = final(steps, rows=rows, row=rows - 1).output()
    single = final(steps, rows=1, row=0).output()
    at_once = final([[token for step in steps for token in step]], rows=1, row=0).output()
    assert timeless(grouped) == timeless(single) == timeless(at_once)
    assert grouped["meta_info"]["output_token_logprobs"] == [
        (logprob, token, f"<{token}>") for step in steps for _, token, logprob, _ in step
    ]
    assert grouped["meta_info"]["input_token_logprobs"] == [(None, 4, "<4>"), (-2.0, 5, "<5>")]
    assert grouped["meta_info"]["input_top_logprobs"] == [None, [(-2.0, 5, "<5>")]]


@given(steps=st.lists(STEP, min_size=1, max_size=6), skipped=st.sets(st.integers(0, 5)))
def test_incremental_pieces_add_up(steps: list[Any], skipped: set[int]) -> None:
    pieces = []
    whole: dict[str, Any] = {}
    number = 0
    for one in fed(steps, rows=1, row=0, stream=True):
        if isinstance(one, dict):
            continue
        if one.finished or number not in skipped:
            pieces.append(one.take())
        number += 1
        whole = one.output()
    assert "".join(piece["text"] for piece in pieces) == whole["text"]
    assert [token for piece in pieces for token in piece["output_ids"]] == whole["output_ids"]
    for key in ("output_token_logprobs", "output_top_logprobs", "output_token_ids_logprobs", "k"):
        assert [item for piece in pieces for item in piece["meta_info"][key]] == whole["meta_info"][key]
    for key in ("input_token_logprobs", "completion_tokens", "finish_reason", "output_token_logprobs_length"):
        assert pieces[-1]["meta_info"][key] == whole["meta_info"][key]


FIELDS = [
    "finished_reasons",
    "output_strs",
    "output_ids",
    "prompt_tokens",
    "completion_tokens",
    "cached_tokens_details",
    "customized_info",
    "dp_ranks",
    "output_top_logprobs_val",
    "output_token_logprobs_idx",
    "weight_versions",
    "spec_verify_ct",
]


@given(missing=st.sets(st.sampled_from(FIELDS)), value=st.sampled_from([None, []]))
def test_columns_may_be_missing_or_short(missing: set[str], value: Any) -> None:
    message = columns(
        ["r"], finished_reasons=[STOP], output_token_logprobs_val=[[-1.0]], output_token_logprobs_idx=[[1]]
    )
    message.update(dict.fromkeys(missing, {} if value == [] and "customized_info" in missing else value))
    one = sample(logprobs=Logprobs(top=1, token_ids=True), facts=AnswerFacts(speculative=True, enable_metrics=True))
    one.on_output(message, 0)
    assert one.output()["meta_info"]["id"] == "r"
