"""The codecs against SGLang's own classes: what either side writes, the other reads as the same."""

from __future__ import annotations

import itertools
import pickle
import warnings
from array import array
from http import HTTPStatus
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from wire_values import REQUEST, request_fields, sampling, wire_facts

from sglang_subgw.wire.codec import codec_for
from sglang_subgw.wire.message import Message, Struct, TimeStats

pytestmark = pytest.mark.sglang


@pytest.fixture(scope="session")
def io_struct() -> Any:
    pytest.importorskip("sglang")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from sglang.srt.managers import io_struct
    return io_struct


def stock_reads(io_struct: Any, name: str, frame: bytes) -> Any:
    return pickle.loads(frame) if name == "pickle" else io_struct.msgpack_decode(frame)


def stock_writes(io_struct: Any, name: str, message: Any) -> bytes:
    if name == "pickle":
        return pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    return bytes(io_struct.msgpack_encode(message))


@pytest.mark.parametrize("name", ["pickle", "msgpack"])
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=50)
@given(fields=REQUEST)
def test_sglang_reads_our_requests(io_struct: Any, name: str, fields: dict[str, Any]) -> None:
    from sglang.srt.sampling.sampling_params import SamplingParams

    codec = codec_for(wire_facts(name))
    got = stock_reads(io_struct, name, codec.encode("TokenizedGenerateReqInput", fields))
    expected = dict(fields)
    expected["sampling_params"] = SamplingParams(**fields["sampling_params"].fields)
    if fields.get("session_params") is not None:
        expected["session_params"] = io_struct.SessionParams(**fields["session_params"].fields)
    assert got == io_struct.TokenizedGenerateReqInput(**expected)
    batch = [Struct("TokenizedGenerateReqInput", fields)] * 2
    got = stock_reads(io_struct, name, codec.encode("BatchTokenizedGenerateReqInput", {"batch": batch}))
    assert got.batch == [io_struct.TokenizedGenerateReqInput(**expected)] * 2


@pytest.mark.parametrize("name", ["pickle", "msgpack"])
@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("TokenizerWorkerRegistrationReq", {"worker_ipc_name": "ipc:///w"}),
        ("AbortReq", {"rid": "r", "http_worker_ipc": "ipc:///w"}),
        ("AbortReq", {"rid": "", "abort_all": True}),
        ("FlushCacheReqInput", {"timeout_s": 1.5}),
        ("GetInternalStateReq", {"http_worker_ipc": "ipc:///w"}),
        ("PauseGenerationReqInput", {"mode": "retract"}),
        ("ContinueGenerationReqInput", {"torch_empty_cache": False}),
    ],
    ids=str,
)
def test_sglang_reads_our_control_messages(io_struct: Any, name: str, kind: str, fields: dict[str, Any]) -> None:
    got = stock_reads(io_struct, name, codec_for(wire_facts(name)).encode(kind, fields))
    assert got == getattr(io_struct, kind)(**fields)


@pytest.mark.parametrize("name", ["pickle", "msgpack"])
def test_a_request_survives_the_router(io_struct: Any, name: str) -> None:
    """The router reads each frame and writes it anew."""
    params = sampling(stop_strs=["x"], stop_str_max_len=1, temperature=1.0, top_k=1)
    codec = codec_for(wire_facts(name))
    first = stock_reads(
        io_struct, name, codec.encode("TokenizedGenerateReqInput", request_fields(sampling_params=params))
    )
    second = stock_reads(io_struct, name, stock_writes(io_struct, name, first))
    assert second == first
    assert (second.sampling_params.stop_strs, second.sampling_params.stop_str_max_len) == (["x"], 1)


def outputs(io_struct: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Every column of an output message, filled, the pickled ones as the scheduler wraps them."""
    from sglang.srt.observability.req_time_stats import SchedulerReqTimeStats
    from sglang.srt.utils.weight_versions import WeightVersionSpan

    monkeypatch.setattr(io_struct, "_USE_PICKLE_IPC", name == "pickle")
    columns: dict[str, Any] = dict.fromkeys(io_struct.BatchStrOutput.__struct_fields__)
    return columns | {
        "rids": ["a", "b"],
        "http_worker_ipcs": ["ipc:///w"] * 2,
        "finished_reasons": [None, {"type": "abort", "message": "m", "status_code": HTTPStatus.BAD_REQUEST}],
        "output_strs": ["x", "한"],
        "output_ids": [array("q", [1]), array("q", [2, 3])],
        "prompt_tokens": [1, 2],
        "completion_tokens": [1, 2],
        "reasoning_tokens": [0, 0],
        "cached_tokens": [0, 1],
        "output_token_logprobs_val": [[-0.5], []],
        "output_token_logprobs_idx": [[1], []],
        "retraction_counts": [0, 0],
        "weight_versions": [None, [WeightVersionSpan(version="v", start=0, end=2)]],
        "customized_info": io_struct.wrap_as_pickle({"k": [[1], [2.5]]}),
        "time_stats": io_struct.wrap_as_pickle([SchedulerReqTimeStats(), SchedulerReqTimeStats()]),
        "dp_ranks": [0, None],
    }


@pytest.mark.parametrize("name", ["pickle", "msgpack"])
def test_we_read_sglangs_outputs(io_struct: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sent = outputs(io_struct, name, monkeypatch)
    message = codec_for(wire_facts(name)).decode(stock_writes(io_struct, name, io_struct.BatchStrOutput(**sent)))
    assert message.kind == "BatchStrOutput"
    got = message.fields
    assert got.keys() == sent.keys()
    assert got.pop("weight_versions") == [None, [Message("WeightVersionSpan", {"version": "v", "start": 0, "end": 2})]]
    assert got.pop("customized_info") == {"k": [[1], [2.5]]}
    stats = got.pop("time_stats")
    assert [isinstance(one, TimeStats) for one in stats] == [True, True]
    assert got == {field: sent[field] for field in got}


NOT_SPLIT = {"rids", "http_worker_ipcs", "placeholder_tokens_idx", "placeholder_tokens_val", "time_stats"}
"""What a row's own message has not, or is compared apart."""
ROWS = 3
NUMBERS = (
    *("prompt_tokens", "completion_tokens", "reasoning_tokens", "cached_tokens", "retraction_counts", "dp_ranks"),
    *("image_tokens", "audio_tokens", "video_tokens", "spec_verify_ct", "spec_num_correct_drafts"),
    *("spec_num_block_accept_tokens", "spec_num_cap_tokens", "input_top_logprobs_flat_null_prefix"),
)


def cell(name: str, number: int) -> Any:
    """A value of a column, unlike every other; raises KeyError for a column that nobody has thought of."""
    made: dict[str, Any] = {
        **dict.fromkeys(NUMBERS, number),
        **{column: [number, number] for column in ("spec_correct_drafts_histogram", "spec_cap_lens_histogram")},
        "token_steps": [number, number],
        "finished_reasons": {"type": "length", "length": number},
        "output_strs": f"text {number}",
        "routed_experts": f"experts {number}",
        "indexer_topk": f"indexer {number}",
        "output_ids": array("q", [number]),
        "cached_tokens_details": {"device": number},
        "output_token_entropy_val": number / 2,
        "output_hidden_states": [[number / 2, number / 4]],
    }
    for side in ("input", "output"):
        made[f"{side}_token_logprobs_val"], made[f"{side}_token_logprobs_idx"] = [number / 2, None], [number, 1]
        for kind in ("top", "token_ids"):
            made[f"{side}_{kind}_logprobs_val"] = [None, [number / 2, number / 4]]
            made[f"{side}_{kind}_logprobs_idx"] = [None, [number, number + 1]]
    return made[name]


def full_outputs(io_struct: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Three rows in every column; those that SGLang lets have gaps have one in the second."""
    import numpy as np
    from sglang.srt.managers.multi_tokenizer_mixin import _UNCHECKED_LENGTH_FIELDS
    from sglang.srt.utils.weight_versions import WeightVersionSpan

    sent = outputs(io_struct, name, monkeypatch)
    sent |= {
        "rids": ["a", "b", "c"],
        "http_worker_ipcs": ["ipc:///w"] * ROWS,
        "weight_versions": [[WeightVersionSpan(version=f"v{row}", start=0, end=row)] for row in range(ROWS)],
        "customized_info": io_struct.wrap_as_pickle({"k": [[row] for row in range(ROWS)]}),
        # Structs of SGLang's own, which no shard reads.
        "beam_search_output": [None] * ROWS,
        "output_token_sampling_mask": [None] * ROWS,
    }
    for column in ("input_top_logprobs_val_flat", "input_top_logprobs_idx_flat"):
        sent[column] = [np.array([row, row + 0.5], dtype=np.float32) for row in range(ROWS)]
    numbers = itertools.count(1)
    for column in sent.keys() - NOT_SPLIT - {"weight_versions", "customized_info", "beam_search_output"}:
        if column != "output_token_sampling_mask" and not column.endswith("_flat"):
            sent[column] = [cell(column, next(numbers)) for _ in range(ROWS)]
            if column in _UNCHECKED_LENGTH_FIELDS:
                sent[column][1] = None
    return {**sent, "time_stats": None}


@pytest.mark.parametrize("rows", [(0,), (1,), (2,), (0, 1), (2, 0), (0, 1, 2)], ids=str)
@pytest.mark.parametrize("name", ["pickle", "msgpack"])
def test_34627_17005_25055_every_column_stays_with_its_row_however_sglang_splits_them(
    io_struct: Any, name: str, rows: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    from sglang.srt.managers import multi_tokenizer_mixin as splitting

    sent = full_outputs(io_struct, name, monkeypatch)
    codec = codec_for(wire_facts(name))
    split = splitting._handle_output_by_indices(io_struct.BatchStrOutput(**sent), list(rows))
    part = codec.decode(stock_writes(io_struct, name, split)).fields
    assert part["rids"] == [sent["rids"][row] for row in rows]
    assert part["customized_info"] == {"k": [[row] for row in rows]}
    assert [[span.fields["version"] for span in spans] for spans in part["weight_versions"]] == [
        [f"v{row}"] for row in rows
    ]
    compared = set(io_struct.BatchStrOutput.__struct_fields__) - NOT_SPLIT - {"customized_info", "weight_versions"}
    for field in compared:
        if field.endswith("_flat"):
            # Arrays of numpy's, which a shard asks for nowhere.
            assert len(part[field]) == len(rows), field
        else:
            assert part[field] == [sent[field][row] for row in rows], field


@pytest.mark.parametrize("name", ["pickle", "msgpack"])
def test_we_read_sglangs_other_messages(io_struct: Any, name: str) -> None:
    codec = codec_for(wire_facts(name))
    state = {"a": [1, {"b": 2.5}]}
    for message, expected in (
        (io_struct.AbortReq(rid="r", finished_reason={"type": "abort", "message": "m"}), {"rid": "r"}),
        (io_struct.PauseContinueBroadcastReq(is_pause=True), {"is_pause": True}),
        (io_struct.HealthCheckOutput(), {}),
        (io_struct.FlushCacheReqOutput(success=True, message="x"), {"success": True, "message": "x"}),
        (io_struct.GetInternalStateReqOutput(internal_state=state), {"internal_state": state}),
    ):
        got = codec.decode(stock_writes(io_struct, name, message))
        assert got.kind == type(message).__name__
        assert got.fields.items() >= expected.items()
