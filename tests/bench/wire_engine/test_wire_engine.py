"""The wire engine: its frames are those of the simulated engine, and gateways serve from them."""

from __future__ import annotations

import socket
from array import array
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import zmq

from sglang_subgw.bench.wire_engine.feed import Worker, connect
from sglang_subgw.bench.wire_engine.frames import WORD, FrameMaker
from sglang_subgw.errors import WireError
from sglang_subgw.simulated.tokenizer import ByteTokenizer
from sglang_subgw.simulated.wire.frames import frame_codec
from sglang_subgw.simulated.wire.structs import StandIn, make
from sglang_subgw.wire.zmtp.protocol import Peer, hello


def _request(rid: str) -> StandIn:
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
    """A socket that keeps what it was given, read."""

    def __init__(self, codec: str) -> None:
        self._wire = frame_codec(codec)
        self._peer = Peer("PUSH")
        self._peer.feed(memoryview(hello("PUSH")))
        self.messages: list[Any] = []

    def sendall(self, messages: bytes | bytearray) -> None:
        self.messages += map(self._wire.decode, self._peer.feed(memoryview(messages)))

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


@pytest.fixture
def pull(tmp_path: Path) -> Iterator[zmq.Socket[bytes]]:
    with zmq.Context() as context, context.socket(zmq.PULL) as socket:
        socket.linger = 0
        socket.rcvtimeo = 10_000
        socket.bind(f"ipc://{tmp_path}/pull")
        yield socket


@pytest.mark.parametrize("size", [0, 1, 255, 256, 70_000])
def test_what_a_worker_sends_libzmq_receives(pull: zmq.Socket[bytes], tmp_path: Path, size: int) -> None:
    messages = [bytes([number]) * size for number in range(3)]
    endpoint = f"ipc://{tmp_path}/pull"
    worker = Worker(
        endpoint, connect(endpoint), FrameMaker(frame_codec("pickle"), "pickle", ByteTokenizer()), grouped=True
    )
    try:
        for message in messages:
            worker.send(message)
        assert [pull.recv() for _ in messages] == messages
    finally:
        worker.close()


def test_a_connection_to_nobody_and_to_another_protocol_says_so(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        connect(f"ipc://{tmp_path}/nobody")
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(f"{tmp_path}/other")
        other.listen()
        with ThreadPoolExecutor(1) as pool:
            connecting = pool.submit(connect, f"ipc://{tmp_path}/other")
            peer, _ = other.accept()
            with peer:
                peer.sendall(b"HTTP/1.1 400 Bad Request".ljust(64))
                with pytest.raises(WireError, match="no greeting of ZMTP but b'HTTP"):
                    connecting.result()
