"""Samples against SGLang's own code: the same answers, field by field."""

from __future__ import annotations

import asyncio
import warnings
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sglang_subgw.wire.message import Message
from sglang_subgw.worker.answers.facts import AnswerFacts
from sglang_subgw.worker.answers.logprobs import Logprobs
from sglang_subgw.worker.answers.sample import Sample

pytestmark = pytest.mark.sglang

ON_FIXTURES = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=150)


@pytest.fixture(scope="session")
def sglang_srt() -> Any:
    """SGLang's modules that these tests compare with."""
    pytest.importorskip("sglang")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from sglang.srt.managers import io_struct, tokenizer_manager
        from sglang.srt.utils import weight_versions
    return SimpleNamespace(io_struct=io_struct, manager=tokenizer_manager, spans=weight_versions)


class ByteTokens:
    """Both sides' tokenizer: one id per byte."""

    def token_texts(self, ids: Any) -> list[str]:
        return [chr(token) for token in ids]

    def batch_decode(self, rows: list[list[int]]) -> list[str]:
        return [chr(token) for [token] in rows]


def stock_manager(srt: Any, monkeypatch: pytest.MonkeyPatch, *, incremental: bool) -> Any:
    """SGLang's TokenizerManager, with only what turns outputs into answers."""
    manager = srt.manager.TokenizerManager.__new__(srt.manager.TokenizerManager)
    vars(manager).update(
        rid_to_state={},
        enable_metrics=False,
        skip_tokenizer_init=False,
        incremental_streaming_output=incremental,
        tokenizer=ByteTokens(),
        enable_lora=False,
        dump_requests_folder="",
        crash_dump_folder="",
        config_value=lambda name: "default",
        request_logger=SimpleNamespace(log_finished_request=lambda *args, **kwargs: None),
        request_metrics_exporter_manager=SimpleNamespace(exporter_enabled=lambda: False),
    )
    monkeypatch.setattr(srt.manager, "get_serving", lambda: SimpleNamespace(batch_notify_size=16))
    spec = SimpleNamespace(speculative_algorithm="EAGLE", speculative_num_draft_tokens=4)
    monkeypatch.setattr(srt.manager, "get_spec", lambda: spec)
    monkeypatch.setattr(srt.manager, "_ragged_verify_cap_accept", lambda: False)
    return manager


def messages_of(srt: Any, rid: str, steps: list[list[int]], draw: Any) -> list[dict[str, Any]]:
    """The output messages of one request, one per step, with varying columns."""
    out = []
    done = 0
    for number, ids in enumerate(steps):
        done += len(ids)
        last = number == len(steps) - 1
        columns: dict[str, Any] = dict.fromkeys(srt.io_struct.BatchStrOutput.__struct_fields__)
        columns |= {
            "rids": ["other", rid],
            "finished_reasons": [None, {"type": "stop", "matched": 2} if last else None],
            "output_strs": ["", "".join(map(chr, ids))],
            "output_ids": [[], ids],
            "prompt_tokens": [0, 3],
            "completion_tokens": [0, done],
            "reasoning_tokens": [0, 1],
            "cached_tokens": [0, 2],
            "retraction_counts": [0, 0],
            "input_token_logprobs_val": [[], [None, -1.5] if not number else []],
            "input_token_logprobs_idx": [[], [65, 66] if not number else []],
            "output_token_logprobs_val": [[], [-0.25 * token for token in ids]],
            "output_token_logprobs_idx": [[], ids],
            "input_top_logprobs_val": [[], [None, [-1.5, -2.0]] if not number else []],
            "input_top_logprobs_idx": [[], [None, [66, 67]] if not number else []],
            "output_top_logprobs_val": [[], [[-0.5, -1.0] for _ in ids]],
            "output_top_logprobs_idx": [[], [[token, 65] for token in ids]],
            "input_token_ids_logprobs_val": [[], [None, [-3.0]] if not number else []],
            "input_token_ids_logprobs_idx": [[], [None, [70]] if not number else []],
            "output_token_ids_logprobs_val": [[], [[-3.0] for _ in ids]],
            "output_token_ids_logprobs_idx": [[], [[70] for _ in ids]],
            "weight_versions": draw([None, [None, [("a", 0, 1), ("b", 1, 99)] if last else None]]),
            "cached_tokens_details": draw([None, [None, {"device": 2}], [None, None]]),
            "customized_info": {"k": [[], list(ids)]},
            "dp_ranks": draw([None, [0, 1], [0, None]]),
            "image_tokens": draw([None, [0, 0], [0, 4]]),
            "output_hidden_states": draw([None, [None, None], [None, [[0.5]]]]),
            "routed_experts": draw([None, [None, "AA=="]]),
            "spec_verify_ct": [0, draw([0, 2])],
            "spec_num_correct_drafts": [0, 3],
            "spec_num_cap_tokens": draw([None, [0, 0], [0, 4]]),
            "spec_correct_drafts_histogram": [[], draw([[], [1, 1]])],
            "spec_cap_lens_histogram": draw([None, [[], [2]]]),
        }
        out.append(columns)
    return out


def for_stock(srt: Any, columns: dict[str, Any]) -> Any:
    spans = columns["weight_versions"]
    if spans is not None:
        make = srt.spans.WeightVersionSpan
        spans = [row and [make(version=v, start=a, end=b) for v, a, b in row] for row in spans]
    return srt.io_struct.BatchStrOutput(**{**columns, "weight_versions": spans})


def for_us(columns: dict[str, Any]) -> dict[str, Any]:
    spans = columns["weight_versions"]
    if spans is not None:
        spans = [
            row and [Message("WeightVersionSpan", {"version": v, "start": a, "end": b}) for v, a, b in row]
            for row in spans
        ]
    return {**columns, "weight_versions": spans}


def comparable(out: dict[str, Any]) -> dict[str, Any]:
    """An answer without its times, but with whether it has them."""
    meta = dict(out["meta_info"])
    for key in ("e2e_latency", "response_sent_to_client_ts"):
        if key in meta:
            meta[key] = "some time"
    return {**out, "output_ids": list(out["output_ids"]), "meta_info": {k: _copied(v) for k, v in meta.items()}}


def _copied(value: Any) -> Any:
    return list(value) if isinstance(value, list) else value


@pytest.mark.parametrize("incremental", [False, True])
@ON_FIXTURES
@given(
    data=st.data(),
    steps=st.lists(st.lists(st.integers(65, 90), min_size=1, max_size=3), min_size=1, max_size=4),
    stream=st.booleans(),
    logprobs=st.booleans(),
    texts=st.booleans(),
    together=st.booleans(),
)
def test_answers_are_sglangs_field_by_field(
    sglang_srt: Any,
    incremental: bool,
    data: st.DataObject,
    steps: list[list[int]],
    stream: bool,
    logprobs: bool,
    texts: bool,
    together: bool,
) -> None:
    srt = sglang_srt
    rid = "r"
    messages = messages_of(srt, rid, steps, lambda options: data.draw(st.sampled_from(options)))
    options: dict[str, Any] = {
        "return_logprob": logprobs,
        "top_logprobs_num": 2,
        "token_ids_logprob": [70],
        "return_text_in_logprobs": texts,
    }

    async def stock_answers(manager: Any) -> list[dict[str, Any]]:
        obj = srt.io_struct.GenerateReqInput(
            text="x", rid=rid, stream=stream, sampling_params={}, log_metrics=False, **options
        )
        obj.normalize_batch_and_arguments()
        stats = srt.manager.APIServerReqTimeStats()
        stats.set_created_time()
        state = srt.manager.ReqState([], False, asyncio.Event(), obj, stats)
        state.prompt_token_ids = [1, 2, 3]
        manager.rid_to_state[rid] = state
        answers = manager._wait_one_response(obj)
        out = []
        for number, columns in enumerate(messages):
            await manager._handle_batch_output(for_stock(srt, columns))
            if (stream and not together) or number == len(messages) - 1:
                out.append(comparable(await anext(answers)))
        return out

    def our_answers() -> list[dict[str, Any]]:
        wanted = Logprobs(top=2, token_ids=True, texts=ByteTokens().token_texts if texts else None)
        facts = AnswerFacts(speculative=True, draft_tokens=4)
        one = Sample(
            rid, rid, 0, facts, stream=stream, logprobs=wanted if logprobs else None, prompt_token_ids=[1, 2, 3]
        )
        out = []
        for number, columns in enumerate(messages):
            one.on_output(for_us(columns), 1)
            if (stream and not together) or number == len(messages) - 1:
                out.append(comparable(one.take() if stream and incremental else one.output()))
        return out

    with pytest.MonkeyPatch.context() as monkeypatch:
        expected = asyncio.run(stock_answers(stock_manager(srt, monkeypatch, incremental=incremental)))
    got = our_answers()
    assert got == expected
    assert [list(out["meta_info"]) for out in got] == [list(out["meta_info"]) for out in expected]
