"""A stream's messages read by what they share: whatever comes, the same as each one unpickled as a whole."""

from __future__ import annotations

import copy
import pickle
from array import array
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_subgw.simulated.wire.frames import frame_codec
from sglang_subgw.simulated.wire.schema import field_lists
from sglang_subgw.simulated.wire.structs import StandInTimeStats as SchedulerTimeStats
from sglang_subgw.simulated.wire.structs import make
from sglang_subgw.wire.codec import Codec
from sglang_subgw.wire.incoming import repeated
from sglang_subgw.wire.incoming.repeated import RepeatedMessages
from sglang_subgw.wire.incoming.unpickle import Reader
from sglang_subgw.wire.message import Message, TimeStats

_FRAMES = frame_codec("pickle")
_WORKER = "ipc:///run/shard-0.ipc"


def _frame(rid: str = "a-1", **fields: Any) -> bytes:
    values: dict[str, Any] = {
        **dict.fromkeys(name for name, _ in field_lists()["BatchStrOutput"]),
        "rids": [rid],
        "http_worker_ipcs": [_WORKER],
        "finished_reasons": [None],
        "output_strs": [" word"],
        "output_ids": [array("q", [7])],
        "prompt_tokens": [3],
        "completion_tokens": [1],
        "reasoning_tokens": [0],
        "cached_tokens": [0],
        "time_stats": [SchedulerTimeStats()],
        "retraction_counts": [0],
        **fields,
    }
    return _FRAMES.encode(make("BatchStrOutput", **values))


def _plain(message: Message | None) -> Any:
    """Comparable: of the times of a request only their values."""
    if message is None:
        return None
    times = message.fields.get("time_stats") or []
    return (message.kind, {**message.fields, "time_stats": [vars(t) if isinstance(t, TimeStats) else t for t in times]})


def _step(count: int, text: str = " next", **fields: Any) -> bytes:
    return _frame(output_strs=[text], output_ids=[array("q", [count])], completion_tokens=[count], **fields)


@pytest.fixture
def messages() -> RepeatedMessages:
    """One stream, a-1, is known."""
    messages = RepeatedMessages()
    first = _frame()
    assert messages.read(first) is None
    messages.learn(first, Reader().loads(first))
    return messages


TOKEN = st.fixed_dictionaries(
    {
        "output_strs": st.text(max_size=6).map(lambda text: [text]) | st.just(["x" * 300]),
        "output_ids": st.lists(st.integers(0, 1 << 40), max_size=40).map(lambda ids: [array("q", ids)]),
        "completion_tokens": st.sampled_from([0, 1, 255, 256, 65535, 65536, 1 << 20, 1 << 31, 1 << 40]).map(
            lambda n: [n]
        ),
        "reasoning_tokens": st.sampled_from([0, 9, 255, 256, 70000]).map(lambda n: [n]),
    },
    optional={
        "cached_tokens": st.just([5]),
        "finished_reasons": st.just([{"type": "length", "length": 3}]),
        "customized_info": st.sampled_from([{"k": ["x"]}, {"k": [" word"]}]),
        "weight_versions": st.sampled_from([["x"], ["b"], ["default"]]),
        "prompt_tokens": st.just([4]),
    },
)
MESSAGE = st.tuples(st.sampled_from(["a-1", "a-2", "b-123456"]), TOKEN)


@given(st.lists(MESSAGE, max_size=30))
def test_every_message_is_read_as_it_is_alone(sent: list[tuple[str, dict[str, Any]]]) -> None:
    messages = RepeatedMessages()
    for rid, fields in sent:
        frame = _frame(rid, **fields)
        whole = Reader().loads(frame)
        read = messages.read(frame)
        if read is None:
            messages.learn(frame, whole)
        else:
            assert _plain(read) == _plain(whole)
            # What its reader keeps with a message is not in the next one.
            read.fields["kept"] = True


@given(st.lists(st.text(min_size=2, max_size=6), min_size=1, max_size=20))
def test_a_streams_tokens_are_read_by_its_first(texts: list[str]) -> None:
    codec = RepeatedMessages()
    first = _frame()
    codec.learn(first, Reader().loads(first))
    for count, text in enumerate(texts, 2):
        frame = _step(count, text)
        assert _plain(codec.read(frame)) == _plain(Reader().loads(frame))


@given(st.data())
def test_a_changed_byte_is_never_read_as_something_else(data: st.DataObject) -> None:
    messages = RepeatedMessages()
    first = _frame()
    messages.learn(first, Reader().loads(first))
    frame = bytearray(_step(2))
    # The length of its frame, which tells an unpickler how much to read at once, is not looked at.
    at = data.draw(st.integers(11, len(frame) - 1))
    frame[at] = data.draw(st.integers(0, 255))
    read = messages.read(bytes(frame))
    if read is not None:
        assert _plain(read) == _plain(Reader().loads(bytes(frame)))


@given(st.data())
def test_a_part_of_a_message_is_no_message(data: st.DataObject) -> None:
    messages = RepeatedMessages()
    first = _frame()
    messages.learn(first, Reader().loads(first))
    frame = _step(2)
    assert messages.read(frame[: data.draw(st.integers(0, len(frame) - 1))]) is None


def test_what_a_message_holds_is_its_own(messages: RepeatedMessages) -> None:
    second = messages.read(_step(2))
    assert second is not None
    before = copy.copy(second.fields)
    second.fields["kept"] = "with it"
    third = messages.read(_step(3))
    assert third is not None
    assert third.fields.keys() == before.keys()
    assert second.fields["completion_tokens"] == [2]


def test_tokens_of_reasoning_change_too(messages: RepeatedMessages) -> None:
    read = messages.read(_step(300, reasoning_tokens=[299]))
    assert read is not None
    assert (read.fields["completion_tokens"], read.fields["reasoning_tokens"]) == ([300], [299])


def test_a_stream_that_differs_in_more_is_read_as_a_whole_from_then_on(messages: RepeatedMessages) -> None:
    other = _step(2, cached_tokens=[2])
    assert messages.read(other) is None
    messages.learn(other, Reader().loads(other))
    assert messages.read(_step(3)) is None


def test_a_stream_that_has_ended_is_forgotten(messages: RepeatedMessages) -> None:
    last = _step(2, finished_reasons=[{"type": "stop", "matched": 1}])
    assert messages.read(last) is None
    messages.learn(last, Reader().loads(last))
    again = _step(3)
    assert messages.read(again) is None
    messages.learn(again, Reader().loads(again))
    assert messages.read(_step(4)) is not None


def test_streams_that_never_ended_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeated, "_MOST", 4)
    messages = RepeatedMessages()
    for number in range(20):
        frame = _frame(f"a-{number:02}")
        messages.learn(frame, Reader().loads(frame))
    assert len(messages._streams) <= 4
    frame = _frame("a-99")
    for _ in range(2):
        messages.learn(frame, Reader().loads(frame))
    assert messages.read(frame) is not None


@pytest.mark.parametrize(
    "frame",
    [
        _frame(rids=["a-1", "a-2"], output_strs=["xy", "yz"], output_ids=[array("q", [1])] * 2),
        _frame(output_ids=[[1]]),
        _frame(output_ids=[None]),
        _frame(output_strs=[None]),
        _frame(completion_tokens=[None]),
        _frame(reasoning_tokens=None),
        _frame(output_strs=["x"]),
        _frame(output_strs=[]),
        _frame(output_ids=None),
        _FRAMES.encode(make("HealthCheckOutput")),
        pickle.dumps({"rids": ["a-1"]}),
    ],
    ids=[
        "two",
        "plain ids",
        "no ids",
        "no text",
        "no count",
        "no column",
        "one letter",
        "no texts",
        "no column of ids",
        "no output",
        "no struct",
    ],
)
def test_what_is_no_stream_is_not_learned(frame: bytes) -> None:
    messages = RepeatedMessages()
    found = Reader().loads(frame)
    messages.learn(frame, found if isinstance(found, Message) else Message("Other", found))
    assert messages.read(frame) is None


def test_the_codec_reads_streams_so(pickle_codec: Codec) -> None:
    for count in range(1, 5):
        message = pickle_codec.decode(_step(count))
        assert message.fields["completion_tokens"] == [count]
        assert message.fields["output_ids"] == [array("q", [count])]
