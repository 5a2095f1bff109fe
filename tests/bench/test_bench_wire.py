"""The wire engine: its frames are those of the simulated engine, and gateways serve from them."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from sglang_subgw.bench.feed import Worker
from sglang_subgw.bench.frames import WORD, FrameMaker
from sglang_subgw.engine.simulated.frames import frame_codec
from sglang_subgw.engine.simulated.structs import Struct, make
from sglang_subgw.engine.simulated.tokenizer import ByteTokenizer


def _request(rid: str) -> Struct:
    params = make("SamplingParams", max_new_tokens=9, stop_strs=[], stop_regex_strs=[], is_normalized=True)
    nothing: dict[str, Any] = dict.fromkeys(
        ("input_text", "input_embeds", "mm_inputs", "token_type_ids", "token_ids_logprob")
    )
    return make(
        "TokenizedGenerateReqInput",
        rid=rid,
        http_worker_ipc="ipc:///x/shard-0.ipc",
        input_ids=array("q", [1, 2, 3]),
        sampling_params=params,
        return_logprob=False,
        logprob_start_len=-1,
        top_logprobs_num=0,
        stream=True,
        **nothing,
    )


@pytest.mark.parametrize("grouped", [True, False])
def test_a_frame_tells_the_counts_of_its_step(codec: str, grouped: bool) -> None:
    wire = frame_codec(codec)
    maker = FrameMaker(wire, codec, ByteTokenizer())
    requests = [_request("a" * 32), _request("b" * 32)] if grouped else [_request("a" * 32)]
    frame = maker.frame(requests, grouped=grouped)
    for counts in ([1, 7], [70_000, 8]):
        message: Any = wire.decode(frame.completed(counts[: len(requests)]))
        assert message.__struct_name__ == "BatchStrOutput"
        assert message.rids == [request.rid for request in requests]
        assert message.completion_tokens == counts[: len(requests)]
        assert message.output_strs == [WORD] * len(requests)
        assert (message.http_worker_ipcs is not None) is grouped


def test_the_last_frame_has_all_that_was_not_sent(codec: str) -> None:
    wire = frame_codec(codec)
    frame = FrameMaker(wire, codec, ByteTokenizer()).last(
        _request("a" * 32), tokens=9, unsent=3, reason={"type": "length", "length": 9}
    )
    message: Any = wire.decode(frame)
    assert message.finished_reasons == [{"type": "length", "length": 9}]
    assert message.output_strs == [WORD * 3]
    assert len(message.output_ids[0]) == 3
    assert message.completion_tokens == [9]


class Kept:
    """A transport that keeps what it was given, read."""

    def __init__(self, codec: str) -> None:
        self._wire = frame_codec(codec)
        self.messages: list[Any] = []

    def send(self, role: str, worker: str, frame: bytes | bytearray) -> None:
        self.messages.append(self._wire.decode(bytes(frame)))

    def sender(self, role: str, worker: str) -> Callable[[bytes | bytearray], None]:
        return partial(self.send, role, worker)

    def take(self) -> dict[str, tuple[int, str, Any]]:
        """Of each request in the messages since the last time: its tokens, its new text, why it ended."""
        taken, self.messages = self.messages, []
        return {
            rid: (message.completion_tokens[row], message.output_strs[row], message.finished_reasons[row])
            for message in taken
            for row, rid in enumerate(message.rids)
        }


@pytest.mark.parametrize("grouped", [True, False])
def test_a_worker_tells_each_token_once_and_each_end(codec: str, grouped: bool) -> None:
    kept = Kept(codec)
    maker = FrameMaker(frame_codec(codec), codec, ByteTokenizer())
    worker = Worker("ipc:///x/shard-0.ipc", kept, maker, grouped=grouped)  # type: ignore[arg-type]
    first, second, third = ("a" * 32, "b" * 32, "c" * 32)
    worker.add(_request(first))
    worker.step()
    worker.add(_request(second))
    assert kept.take() == {first: (1, WORD, None)}
    worker.step()
    assert kept.take() == {first: (2, WORD, None), second: (1, WORD, None)}
    worker.abort(first)
    worker.add(_request(third))
    worker.step()
    told = kept.take()
    assert told.pop(first)[:2] == (3, WORD)
    assert told == {second: (2, WORD, None), third: (1, WORD, None)}
    for step in range(2, 9):
        worker.step()
        told = kept.take()
        assert told.pop(third) == (step, WORD, None)
        assert told.pop(second) == (step + 1, WORD, {"type": "length", "length": 9} if step == 8 else None)
        assert told == {}
    worker.step()
    assert kept.take() == {third: (9, WORD, {"type": "length", "length": 9})}
    assert worker.running == []
    worker.step()
    assert kept.take() == {}
