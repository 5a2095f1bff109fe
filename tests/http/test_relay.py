"""The relay of a streamed answer: what it writes to a client that keeps up, to a slow one, and through a wrapper."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sglang_subgw.errors import EngineUnavailable
from sglang_subgw.http.core.body_stream import SendingBody
from sglang_subgw.http.relay import relay
from sglang_subgw.worker.answers.facts import AnswerFacts
from sglang_subgw.worker.answers.sample import Sample
from sglang_subgw.worker.call import Call
from support.http_fakes import STOP, emit


class FakeBody:
    """A client that reads when it is told to."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.paused = False
        self.callback: Callable[[], None] | None = None

    def write(self, data: bytes) -> None:
        assert not self.paused
        self.parts.append(data)

    def on_writable(self, callback: Callable[[], None] | None) -> None:
        self.callback = callback

    async def flush(self) -> None:
        assert not self.paused

    def resume(self) -> None:
        self.paused = False
        if self.callback is not None:
            self.callback()


def call_of(count: int) -> Call:
    samples = [Sample(f"r{i}", f"r{i}", i, AnswerFacts(), stream=True) for i in range(count)]
    return Call(samples, is_single=count == 1, stream=True, abort=lambda sample: None)


class Deltas:
    """Renders what is new of each sample."""

    def __init__(self) -> None:
        self.seen: dict[int, int] = {}
        self.rendered: list[tuple[int, str]] = []

    def __call__(self, sample: Sample) -> bytes:
        if sample.error is not None:
            raise sample.error
        delta = sample.text[self.seen.get(sample.index, 0) :]
        self.seen[sample.index] = len(sample.text)
        self.rendered.append((sample.index, delta))
        return delta.encode()


def test_what_came_before_and_after_it_began_is_written_at_once() -> None:
    async def run() -> None:
        call, body, deltas = call_of(2), FakeBody(), Deltas()
        a, b = call.samples
        emit(a, "early")
        task = asyncio.create_task(relay(call, body, deltas))
        await asyncio.sleep(0)
        assert body.parts == [b"early"]
        emit(b, "x")
        emit(a, "y", STOP)
        assert body.parts == [b"early", b"x", b"y"], "no task had a turn in between"
        emit(b, "z", STOP)
        await task
        assert body.parts == [b"early", b"x", b"y", b"z"]
        assert body.callback is None

    asyncio.run(run())


def test_all_had_ended_before_it_began() -> None:
    async def run() -> None:
        call, body = call_of(3), FakeBody()
        for sample in call.samples:
            emit(sample, str(sample.index), STOP)
        await relay(call, body, Deltas())
        assert body.parts == [b"0", b"1", b"2"]

    asyncio.run(run())


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), st.sampled_from(["say", "pause", "resume"])), max_size=40))
def test_a_slow_client_gets_everything_merged_and_nothing_twice(steps: list[tuple[int, str]]) -> None:
    async def run() -> None:
        call, body, deltas = call_of(3), FakeBody(), Deltas()
        said = dict.fromkeys(range(3), "")
        task = asyncio.create_task(relay(call, body, deltas))
        await asyncio.sleep(0)
        for number, (index, what) in enumerate(steps):
            if what == "say":
                emit(call.samples[index], f"{number},")
                said[index] += f"{number},"
            elif what == "pause":
                body.paused = True
            else:
                body.resume()
        for sample in call.samples:
            emit(sample, "end", STOP)
        body.resume()
        await task
        got = dict.fromkeys(range(3), "")
        for index, delta in deltas.rendered:
            got[index] += delta
        assert got == {index: text + "end" for index, text in said.items()}
        assert b"".join(body.parts) == "".join(delta for _, delta in deltas.rendered).encode()

    asyncio.run(run())


def test_while_a_client_is_slow_its_outputs_become_one() -> None:
    async def run() -> None:
        call, body, deltas = call_of(1), FakeBody(), Deltas()
        task = asyncio.create_task(relay(call, body, deltas))
        await asyncio.sleep(0)
        body.paused = True
        for _ in range(1000):
            emit(call.samples[0], "x")
        body.resume()
        assert body.parts == [b"x" * 1000]
        emit(call.samples[0], "", STOP)
        await task

    asyncio.run(run())


def test_an_error_ends_it_and_is_raised() -> None:
    async def run() -> None:
        call, body = call_of(2), FakeBody()
        task = asyncio.create_task(relay(call, body, Deltas()))
        await asyncio.sleep(0)
        call.samples[0].fail(EngineUnavailable("gone"))
        emit(call.samples[1], "late")
        with pytest.raises(EngineUnavailable, match="gone"):
            await task
        assert body.parts == []
        emit(call.samples[1], "later", STOP)
        assert body.parts == []

    asyncio.run(run())


def test_a_wrapped_send_is_awaited_part_by_part_and_merges_meanwhile() -> None:
    async def run() -> None:
        sent: list[bytes] = []
        gate = asyncio.Event()

        async def write(data: bytes) -> None:
            await gate.wait()
            sent.append(data)

        call, body = call_of(1), SendingBody(write)
        task = asyncio.create_task(relay(call, body, Deltas()))
        await asyncio.sleep(0)
        for text in ("a", "b", "c"):
            emit(call.samples[0], text)
            await asyncio.sleep(0)
        assert sent == []
        gate.set()
        while len(sent) < 2:
            await asyncio.sleep(0)
        assert sent == [b"a", b"bc"]
        emit(call.samples[0], "d", STOP)
        await task
        assert sent == [b"a", b"bc", b"d"]

    asyncio.run(run())


def test_what_a_wrapped_send_raises_ends_the_relay() -> None:
    async def run() -> None:
        async def write(data: bytes) -> None:
            raise RuntimeError("no")

        call = call_of(1)
        task = asyncio.create_task(relay(call, SendingBody(write), Deltas()))
        await asyncio.sleep(0)
        emit(call.samples[0], "a", STOP)
        with pytest.raises(RuntimeError, match="no"):
            await task

    asyncio.run(run())
