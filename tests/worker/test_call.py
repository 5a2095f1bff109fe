"""Calls: one event for all samples, each announced when it has news, each ended once."""

from __future__ import annotations

import asyncio

import pytest

from sglang_subgw.errors import EngineRejected, EngineUnavailable
from sglang_subgw.worker.answers.sample import Sample
from sglang_subgw.worker.call import Call
from support.shard_values import columns, sample

STOP = {"type": "stop", "matched": 2}
FULL = {"type": "abort", "message": "full", "status_code": 503}


def made(count: int, *, stream: bool) -> tuple[Call, list[Sample], list[Sample]]:
    samples = [sample(f"r{i}", stream=stream) for i in range(count)]
    aborted: list[Sample] = []
    return Call(samples, is_single=count == 1, stream=stream, abort=aborted.append), samples, aborted


def say(one: Sample, *, last: bool = False, reason: dict[str, object] | None = None) -> None:
    one.on_output(columns([one.rid], finished_reasons=[reason or (STOP if last else None)]), 0)
    one.announce()


def test_iteration_gives_news_and_each_end_once() -> None:
    async def run() -> None:
        call, (a, b), aborted = made(2, stream=True)
        seen: list[tuple[str, int, bool]] = []

        async def consume() -> None:
            async with call:
                seen.extend([(one.rid, len(one.output_ids), one.finished) async for one in call])

        task = asyncio.create_task(consume())
        say(a)
        say(a)
        say(b)
        await asyncio.sleep(0.001)
        assert seen == []
        say(b, last=True)
        say(a, last=True)
        await task
        assert sorted(one for one in seen if one[2]) == [("r0", 3, True), ("r1", 2, True)]
        assert aborted == []
        assert call.finished

    asyncio.run(run())


def test_several_outputs_of_one_wake_up_are_one_news() -> None:
    async def run() -> None:
        call, (a,), _ = made(1, stream=True)
        for _ in range(5):
            say(a)
        stream = aiter(call)
        assert await anext(stream) is a
        assert len(a.output_ids) == 5
        say(a, last=True)
        assert await anext(stream) is a
        with pytest.raises(StopAsyncIteration):
            await anext(stream)

    asyncio.run(run())


def test_whole_answers_are_announced_at_their_end_only() -> None:
    async def run() -> None:
        call, (a, b), _ = made(2, stream=False)
        waiting = asyncio.create_task(call.wait())
        say(a)
        say(b, last=True)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not waiting.done()
        say(a, last=True)
        await waiting
        await call.wait()

    asyncio.run(run())


def test_wait_raises_as_soon_as_one_fails_and_the_rest_is_aborted() -> None:
    async def run() -> None:
        call, (a, b), aborted = made(2, stream=False)
        asyncio.get_running_loop().call_soon(lambda: say(b, reason=FULL))

        async def consume() -> None:
            async with call:
                await call.wait()

        with pytest.raises(EngineRejected, match="full") as caught:
            await consume()
        assert caught.value.status == 503
        assert aborted == [a]

    asyncio.run(run())


def test_first_raises_what_failed_before_any_output() -> None:
    async def run() -> None:
        call, (a,), _ = made(1, stream=True)
        a.on_abort({"finished_reason": FULL})
        with pytest.raises(EngineRejected, match="full"):
            await call.first()
        call, (a,), _ = made(1, stream=True)
        say(a)
        a.fail(EngineUnavailable("gone"))
        await call.first()
        assert [one.error is not None async for one in call] == [True]

    asyncio.run(run())


def test_leaving_aborts_what_runs() -> None:
    async def run() -> None:
        call, (a, b), aborted = made(2, stream=True)
        async with call:
            say(a, last=True)
            await call.first()
        assert aborted == [b]

    asyncio.run(run())
