"""What arrives: plain values of SGLang's messages; nothing is imported, and nothing that is broken gets further."""

from __future__ import annotations

import io
import os
import pickle
from array import array
from fractions import Fraction
from http import HTTPStatus
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sglang_subgw.contract import WireFacts
from sglang_subgw.errors import WireError
from sglang_subgw.wire.codec import Codec, codec_for
from sglang_subgw.wire.message import Message, Opaque
from support.wire_values import wire_facts

OUTPUT: dict[str, Any] = {
    "rids": ["a", "b"],
    "finished_reasons": [None, {"type": "abort", "message": "m", "status_code": HTTPStatus.SERVICE_UNAVAILABLE}],
    "output_strs": ["x", "é"],
    "output_ids": [array("q", [1]), array("q", [2, 3])],
}


def pickled(kind: str, fields: dict[str, Any], module: str = "sglang.srt.managers.io_struct") -> bytes:
    """A struct as msgspec pickles it."""
    head = f"cmsgspec._utils\nrebuild\nc{module}\n{kind}\n".encode()
    return b"\x80\x04" + head + pickle.dumps(fields, 3)[2:-1] + b"\x86R."


def packed(wire: WireFacts, kind: str, fields: dict[str, Any]) -> bytes:
    """A struct as msgspec packs it."""
    import msgspec

    def hook(value: Any) -> Any:
        return msgspec.msgpack.Ext(1, b"\x00\x00\x00\x02\xa1" + value.typecode.encode() + value.tobytes())

    row = [kind, *(fields.get(name) for name, _ in wire.schema[kind])]
    return msgspec.msgpack.encode(row, enc_hook=hook)


@pytest.mark.parametrize("name", ["pickle", "msgpack"])
def test_outputs_read_the_same_in_both(name: str) -> None:
    wire = wire_facts(name)
    codec = codec_for(wire)
    message = codec.decode(
        pickled("BatchStrOutput", OUTPUT) if name == "pickle" else packed(wire, "BatchStrOutput", OUTPUT)
    )
    assert message.kind == "BatchStrOutput"
    assert {key: message.fields[key] for key in OUTPUT} == OUTPUT
    assert type(message.fields["finished_reasons"][1]["status_code"]) is int


def test_weight_versions_have_names_in_both(pickle_codec: Codec, msgpack_codec: Codec) -> None:
    span = {"version": "v1", "start": 0, "end": 2}
    module = "sglang.srt.utils.weight_versions"
    inner = (
        f"cmsgspec._utils\nrebuild\nc{module}\nWeightVersionSpan\n".encode() + pickle.dumps(span, 3)[2:-1] + b"\x86R"
    )
    frame = (
        b"\x80\x04cmsgspec._utils\nrebuild\ncsglang.srt.managers.io_struct\nBatchStrOutput\n"
        + pickle.dumps({"rids": ["a", "b"]}, 3)[2:-1]
        + b"(X\x0f\x00\x00\x00weight_versions](N]"
        + inner
        + b"aeu\x86R."
    )
    columns = {"rids": ["a", "b"], "weight_versions": [None, [["v1", 0, 2]]]}
    expected = [None, [Message("WeightVersionSpan", span)]]
    assert pickle_codec.decode(frame).fields["weight_versions"] == expected
    assert (
        msgpack_codec.decode(packed(wire_facts("msgpack"), "BatchStrOutput", columns)).fields["weight_versions"]
        == expected
    )
    one = packed(wire_facts("msgpack"), "AbortReq", {"rid": "a", "weight_versions": [["v1", 0, 2]]})
    assert msgpack_codec.decode(one).fields["weight_versions"] == expected[1]


def test_pickles_inside_msgpack_are_read_by_the_same_rules(msgpack_codec: Codec) -> None:
    columns = {
        "rids": ["a"],
        "customized_info": ["PickleWrapper", pickle.dumps({"k": [[1]]})],
        "time_stats": ["PickleWrapper", pickle.dumps([Fraction(1, 2)])],
    }
    fields = msgpack_codec.decode(packed(wire_facts("msgpack"), "BatchStrOutput", columns)).fields
    assert fields["customized_info"] == {"k": [[1]]}
    assert isinstance(fields["time_stats"][0], Opaque)


class Evil:
    def __reduce__(self) -> Any:
        return (os.system, ("touch /nowhere/evil",))


@pytest.mark.parametrize("value", [Evil(), Fraction(1, 3), io.BytesIO(b"x"), {"k": [Evil()]}])
def test_unknown_classes_become_inert(pickle_codec: Codec, value: Any) -> None:
    fields = pickle_codec.decode(pickled("BatchStrOutput", {"rids": [], "customized_info": value})).fields
    found = fields["customized_info"]
    if isinstance(found, dict):
        found = found["k"][0]
    assert isinstance(found, Opaque) or (isinstance(found, type) and issubclass(found, Opaque))


# These opcodes take a size or an index that Python allocates before it looks at it: gigabytes, for a damaged one.
# Damage to a size that is there has the same effect; therefore the examples are always the same ones.
ALLOCATING = pickle.LONG_BINPUT + pickle.BYTEARRAY8 + pickle.BINBYTES8 + pickle.BINUNICODE8


@settings(derandomize=True)
@given(junk=st.binary(max_size=200).filter(lambda junk: not set(junk) & set(ALLOCATING)))
@pytest.mark.parametrize("name", ["pickle", "msgpack"])
def test_junk_is_refused(name: str, junk: bytes) -> None:
    codec = codec_for(wire_facts(name))
    try:
        message = codec.decode(junk)
    except WireError:
        return
    assert isinstance(message, Message)


@settings(derandomize=True)
@given(at=st.integers(0, 400), byte=st.integers(0, 255).filter(lambda byte: byte not in ALLOCATING), cut=st.booleans())
@pytest.mark.parametrize("name", ["pickle", "msgpack"])
def test_damaged_frames_are_refused_or_read(name: str, at: int, byte: int, cut: bool) -> None:
    wire = wire_facts(name)
    frame = pickled("BatchStrOutput", OUTPUT) if name == "pickle" else packed(wire, "BatchStrOutput", OUTPUT)
    at %= len(frame)
    damaged = frame[:at] if cut else frame[:at] + bytes([byte]) + frame[at + 1 :]
    try:
        message = codec_for(wire).decode(damaged)
    except WireError:
        return
    assert isinstance(message, Message)
    assert isinstance(message.fields, dict)


@pytest.mark.parametrize("frame", [b"", b"\x80\x04N.", b"\x80\x04]."])
def test_a_pickle_without_a_message_is_refused(pickle_codec: Codec, frame: bytes) -> None:
    with pytest.raises(WireError):
        pickle_codec.decode(frame)


def test_fields_that_a_newer_sglang_adds_are_ignored(msgpack_codec: Codec) -> None:
    import msgspec

    frame = msgspec.msgpack.encode(["HealthCheckOutput", "r", None, 1, 2, 3])
    assert msgpack_codec.decode(frame).kind == "HealthCheckOutput"
    assert msgpack_codec.decode(msgspec.msgpack.encode(["AbortReq"])).fields == {}
