"""What is sent: nothing that the engine would not read as it is meant."""

from __future__ import annotations

from array import array
from typing import Any

import pytest
from hypothesis import given

from sglang_subgw.errors import WireError
from sglang_subgw.wire.codec import Codec, codec_for
from sglang_subgw.wire.message import Message, Struct
from support.wire_values import REQUEST, request_fields, sampling, wire_facts


def plain(value: Any) -> Any:
    if isinstance(value, Struct):
        return Message(value.kind, value.fields)
    return value


@given(fields=REQUEST)
def test_a_pickled_request_reads_back_as_it_was(fields: dict[str, Any]) -> None:
    codec = codec_for(wire_facts("pickle"))
    message = codec.decode(codec.encode("TokenizedGenerateReqInput", fields))
    assert message.kind == "TokenizedGenerateReqInput"
    assert message.fields == {name: plain(value) for name, value in fields.items()}


@given(first=REQUEST, second=REQUEST)
def test_a_pickled_batch_reads_back_as_it_was(first: dict[str, Any], second: dict[str, Any]) -> None:
    codec = codec_for(wire_facts("pickle"))
    batch = [Struct("TokenizedGenerateReqInput", fields) for fields in (first, second)]
    message = codec.decode(codec.encode("BatchTokenizedGenerateReqInput", {"batch": batch}))
    assert [item.fields["rid"] for item in message.fields["batch"]] == [first["rid"], second["rid"]]
    assert [item.fields["input_ids"] for item in message.fields["batch"]] == [first["input_ids"], second["input_ids"]]


def test_msgpack_frames_are_sglangs(msgpack_codec: Codec) -> None:
    import msgspec

    def raw(kind: str, fields: dict[str, Any]) -> Any:
        return msgspec.msgpack.decode(msgpack_codec.encode(kind, fields))

    assert msgpack_codec.encode("TokenizerWorkerRegistrationReq", {"worker_ipc_name": "ipc:///run/w"}) == (
        b"\x94\xbeTokenizerWorkerRegistrationReq\xc0\xc0\xacipc:///run/w"
    )
    assert raw("AbortReq", {"rid": "r", "http_worker_ipc": "ipc:///run/w"}) == ["AbortReq", "r", "ipc:///run/w"]
    frame = msgpack_codec.encode("TokenizedGenerateReqInput", request_fields())
    assert bytes.fromhex("c71e0100000002a171") + array("q", [1, 2, 3]).tobytes() in frame
    row = msgspec.msgpack.decode(frame)
    assert row[:4] == ["TokenizedGenerateReqInput", "r", "ipc:///run/w", None]
    assert len(row) == 14  # the tail is left out


BAD = [
    {"input_ids": [1, 2]},
    {"input_ids": array("i", [1])},
    {"input_ids": None},
    {"stream": 1},
    {"stream": None},
    {"top_logprobs_num": True},
    {"top_logprobs_num": 1.0},
    {"logprob_start_len": 2**63},
    {"token_ids_logprob": [1, "2"]},
    {"rid": None},
    {"rid": "\ud800"},
    {"http_worker_ipc": None},
    {"priority": "high"},
    {"mm_inputs": Ellipsis},
    {"return_hidden_states": "first"},
    {"lora_id": 1},
    {"no_such_field": 1},
    {"sampling_params": {}},
    {"sampling_params": Struct("SessionParams", {})},
    {"sampling_params": Struct("SamplingParams", {})},
    {"sampling_params": sampling(temperature=1)},
    {"sampling_params": sampling(temperature=float("nan"))},
    {"sampling_params": sampling(temperature="hot")},
    {"sampling_params": sampling(top_k=True)},
    {"sampling_params": sampling(stop_strs=None)},
    {"sampling_params": sampling(stop_strs="x")},
    {"sampling_params": sampling(stop_token_ids=[1])},
    {"sampling_params": sampling(is_normalized=False)},
    {"sampling_params": sampling(logit_bias={1: 1.0})},
    {"sampling_params": sampling(logit_bias={"1": 1})},
    {"sampling_params": sampling(json_schema={})},
    {"sampling_params": sampling(custom_params={"a": [[1]]})},
    {"session_params": {"id": "x"}},
]


@pytest.mark.parametrize("changes", BAD, ids=str)
def test_a_wrong_field_is_refused(codec: Codec, changes: dict[str, Any]) -> None:
    with pytest.raises(WireError):
        codec.encode("TokenizedGenerateReqInput", request_fields(**changes))
    with pytest.raises(WireError):
        codec.encode(
            "BatchTokenizedGenerateReqInput",
            {"batch": [Struct("TokenizedGenerateReqInput", request_fields(**changes))]},
        )


@pytest.mark.parametrize("name", ["rid", "http_worker_ipc", "input_ids", "sampling_params", "stream"])
def test_a_missing_field_is_refused(codec: Codec, name: str) -> None:
    fields = request_fields()
    del fields[name]
    with pytest.raises(WireError, match=name):
        codec.encode("TokenizedGenerateReqInput", fields)


def test_an_unknown_message_is_refused(codec: Codec) -> None:
    with pytest.raises(WireError, match="NoSuchReq"):
        codec.encode("NoSuchReq", {})


def test_any_control_message_may_hold_plain_values(codec: Codec) -> None:
    assert codec.encode("AddExternalCorpusReqInput", {"corpus_id": "c", "documents": ["a", "b"]})
    with pytest.raises(WireError):
        codec.encode("AddExternalCorpusReqInput", {"corpus_id": object()})


def test_an_unknown_codec_is_refused() -> None:
    with pytest.raises(WireError, match="json"):
        codec_for(wire_facts("json"))
