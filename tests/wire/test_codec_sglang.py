"""The codecs against SGLang's own classes: what either side writes, the other reads as the same."""

from __future__ import annotations

import itertools
import pickle
import typing
import warnings
from array import array
from http import HTTPStatus
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from sglang_subgw.wire.codec import codec_for
from sglang_subgw.wire.message import Message, Struct, TimeStats
from support.wire_values import REQUEST, request_fields, sampling, wire_facts

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


NOT_SPLIT = {"rids", "http_worker_ipcs", "placeholder_tokens_idx", "placeholder_tokens_val"}
"""What SGLang splits in its own way, or leaves out."""
ROWS = 3
GAP = 1
"""The row that has nothing where SGLang lets a row have nothing."""
NUMBERS = (
    *("prompt_tokens", "completion_tokens", "reasoning_tokens", "cached_tokens", "retraction_counts", "dp_ranks"),
    *("image_tokens", "audio_tokens", "video_tokens", "spec_verify_ct", "spec_num_correct_drafts"),
    *("spec_num_block_accept_tokens", "spec_num_cap_tokens", "input_top_logprobs_flat_null_prefix"),
)
UNREAD = {
    *("input_top_logprobs_val_flat", "input_top_logprobs_idx_flat"),
    *("output_token_sampling_mask", "beam_search_output"),
}
"""What only requests that no shard sends are answered with: of these it is only checked which rows have any."""


def cell(name: str, number: int) -> Any:
    """A value of a column, unlike every other; raises KeyError for a column that nobody has thought of."""
    import numpy as np
    from sglang.srt.beam_search.types import BeamSearchSequence
    from sglang.srt.managers.io_struct import BeamSearchOutput
    from sglang.srt.observability.req_time_stats import SchedulerReqTimeStats
    from sglang.srt.sampling.sampling_mask import SamplingMaskChunk
    from sglang.srt.utils.weight_versions import WeightVersionSpan

    one = np.array([1], dtype=np.int32)
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
        "input_top_logprobs_val_flat": np.array([number, number / 2], dtype=np.float32),
        "input_top_logprobs_idx_flat": np.array([number, 1], dtype=np.int32),
        "output_token_sampling_mask": SamplingMaskChunk(lengths=one, token_ids=one * number, logprobs=one / 2),
        "beam_search_output": BeamSearchOutput(sequences=[BeamSearchSequence(tokens=[number])]),
        "weight_versions": [WeightVersionSpan(version=f"v{number}", start=0, end=number)],
        "customized_info": [number],
        "time_stats": SchedulerReqTimeStats(has_timing_data=True, queue_duration_s=number / 2),
    }
    for side in ("input", "output"):
        made[f"{side}_token_logprobs_val"], made[f"{side}_token_logprobs_idx"] = [number / 2, None], [number, 1]
        for kind in ("top", "token_ids"):
            made[f"{side}_{kind}_logprobs_val"] = [None, [number / 2, number / 4]]
            made[f"{side}_{kind}_logprobs_idx"] = [None, [number, number + 1]]
    return made[name]


def may_be_none(hint: Any) -> bool:
    return type(None) in typing.get_args(hint)


def row_may_be_none(hint: Any) -> bool:
    """The same of a column's rows, where the column itself may be None or not."""
    lists = [one for one in (hint, *typing.get_args(hint)) if typing.get_origin(one) is list]
    return bool(lists) and may_be_none(typing.get_args(lists[0])[0])


def cells(io_struct: Any, form: str, first: int) -> dict[str, list[Any] | None]:
    """Three rows for every column that SGLang splits.

    With `gaps` the second row has None wherever SGLang's types let it, with `missing` each column that may be is None,
    and with `short` each that SGLang lets be shorter than the batch is empty.
    """
    from sglang.srt.managers.multi_tokenizer_mixin import _UNCHECKED_LENGTH_FIELDS

    numbers, filled = itertools.count(first), {}
    for column, hint in typing.get_type_hints(io_struct.BatchStrOutput).items():
        if column in NOT_SPLIT:
            continue
        rows: list[Any] | None = [cell(column, next(numbers)) for _ in range(ROWS)]
        if form == "missing" and may_be_none(hint):
            rows = None
        elif form == "short" and may_be_none(hint) and column not in _UNCHECKED_LENGTH_FIELDS | {"time_stats"}:
            rows = []
        elif form == "gaps" and (row_may_be_none(hint) or column in ("customized_info", "time_stats")):
            rows[GAP] = None
        filled[column] = rows
    return filled


def batch_of(io_struct: Any, filled: dict[str, list[Any] | None]) -> Any:
    """The detokenizer's message with these columns, the pickled ones wrapped."""
    sent = dict(filled)
    info = sent["customized_info"]
    sent["customized_info"] = io_struct.wrap_as_pickle(info and {"k": info})
    sent["time_stats"] = io_struct.wrap_as_pickle(sent["time_stats"])
    left_out = dict.fromkeys(("placeholder_tokens_idx", "placeholder_tokens_val"))
    return io_struct.BatchStrOutput(rids=["a", "b", "c"], http_worker_ipcs=["ipc:///w"] * ROWS, **left_out, **sent)


def plain(value: Any) -> Any:
    """SGLang's structs as a shard has them, and of times one."""
    if isinstance(value, list):
        return [plain(item) for item in value]
    if hasattr(value, "__struct_fields__"):
        fields = {name: plain(getattr(value, name)) for name in value.__struct_fields__}
        return Message(type(value).__name__, fields)
    if hasattr(value, "queue_duration_s"):
        return value.queue_duration_s
    return value


SPLITS = [
    *(("_handle_output_by_index", (row,)) for row in range(ROWS)),
    *(("_handle_output_by_indices", rows) for rows in ((0,), (1,), (2,), (0, 1), (2, 0), (0, 1, 2))),
]


@pytest.mark.parametrize("form", ["full", "gaps", "missing", "short"])
@pytest.mark.parametrize(("split", "rows"), SPLITS, ids=str)
@pytest.mark.parametrize("name", ["pickle", "msgpack"])
def test_34627_17005_25055_every_column_stays_with_its_row_however_sglang_splits_them(
    io_struct: Any, name: str, split: str, rows: tuple[int, ...], form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sglang.srt.managers import multi_tokenizer_mixin

    handle = getattr(multi_tokenizer_mixin, split, None)
    if handle is None:
        pytest.skip("this SGLang has no such way")
    monkeypatch.setattr(io_struct, "_USE_PICKLE_IPC", name == "pickle")
    filled = cells(io_struct, form, 1)
    sent = handle(batch_of(io_struct, filled), rows[0] if split == "_handle_output_by_index" else list(rows))
    frame = stock_writes(io_struct, name, sent)
    assert type(stock_reads(io_struct, name, frame)) is io_struct.BatchStrOutput, "SGLang wouldn't send this"
    compare_rows(codec_for(wire_facts(name)).decode(frame), filled, rows)


@pytest.mark.parametrize("name", ["pickle", "msgpack"])
def test_34627_17005_25055_a_streams_next_output_takes_nothing_over_from_its_last_one(
    io_struct: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever column it is that differs: what a stream's messages share need not be read twice."""
    from sglang.srt.managers.multi_tokenizer_mixin import _handle_output_by_index

    monkeypatch.setattr(io_struct, "_USE_PICKLE_IPC", name == "pickle")
    # As long as one another on the wire.
    last, new = cells(io_struct, "full", 101), cells(io_struct, "full", 102)
    last["finished_reasons"] = [None] * ROWS
    for column in last:
        codec = codec_for(wire_facts(name))
        for filled in (last, {**last, column: new[column]}, last):
            sent = _handle_output_by_index(batch_of(io_struct, filled), 0)
            compare_rows(codec.decode(stock_writes(io_struct, name, sent)), filled, (0,))


def compare_rows(message: Message, filled: dict[str, list[Any] | None], rows: tuple[int, ...]) -> None:
    """What was read of each column is what these rows of it were filled with."""
    kind, got = message
    assert kind == "BatchStrOutput"
    assert got["rids"] == ["abc"[row] for row in rows]
    assert got.keys() - filled.keys() == NOT_SPLIT
    for column, whole in filled.items():
        expected = [plain(whole[row]) for row in rows] if whole else None
        read = got[column]
        if column == "customized_info" and read is not None:
            assert read.keys() == {"k"}
            read = read["k"]
        if column == "time_stats":
            assert all(one is None or isinstance(one, TimeStats) for one in read or ())
            read = plain(read)
        if column in UNREAD:
            read, expected = [[one is None for one in values or ()] for values in (read, expected)]
        assert read == expected, column


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
