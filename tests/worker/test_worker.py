"""The worker against a simulated engine that speaks SGLang's side of the wire and objects to what would hurt it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from sglang_subgw.contract import Word
from sglang_subgw.errors import EngineRejected, RequestRejected
from sglang_subgw.worker.requests.request import GenerateRequest
from support.shard_values import Shard, with_shard

pytestmark = pytest.mark.usefixtures("needs_tokenizers")


def ids_request(**fields: Any) -> GenerateRequest:
    return GenerateRequest(**({"input_ids": [104, 105], "sampling_params": {"max_new_tokens": 4}} | fields))


ENDLESS = {"max_new_tokens": 3000}


def test_answers_come_back(tmp_path: Path, codec: str) -> None:
    async def scenario(shard: Shard) -> None:
        assert await shard.engine.health_generate(5)
        out: Any = await shard.engine.async_generate("hello", {"max_new_tokens": 2}, return_prompt_token_ids=True)
        assert (out["text"], out["prompt_token_ids"]) == ("hellohello", [272])
        assert out["meta_info"]["finish_reason"] == {"type": "length", "length": 2}
        outs: Any = await shard.engine.async_generate(["hello", "abc"], {"max_new_tokens": 3}, rid="r")
        assert [(o["text"], o["meta_info"]["id"]) for o in outs] == [("hellohellohello", "r_0"), ("abc", "r_1")]
        pieces: Any = await shard.engine.async_generate(
            input_ids=[97, 98], sampling_params=ENDLESS | {"max_new_tokens": 9}, stream=True
        )
        last = [piece async for piece in pieces][-1]
        assert last["text"] == "ababababa"

    with_shard(tmp_path, scenario, codec=codec)


def test_incremental_streams_add_up(tmp_path: Path, codec: str) -> None:
    async def scenario(shard: Shard) -> None:
        pieces: Any = await shard.engine.async_generate("한é!", {"max_new_tokens": 20}, stream=True)
        text, ids = "", []
        async for piece in pieces:
            text += piece["text"]
            ids += piece["output_ids"]
        whole: Any = await shard.engine.async_generate("한é!", {"max_new_tokens": 20})
        assert (text, ids) == (whole["text"], whole["output_ids"])

    with_shard(tmp_path, scenario, codec=codec, features={"incremental_streaming_output": True})


def test_samples_follow_a_warm_up_and_are_prompt_major(tmp_path: Path, codec: str) -> None:
    async def scenario(shard: Shard) -> None:
        request = GenerateRequest(text=["abcdef", "xyz"], sampling_params={"max_new_tokens": 2, "n": 3}, rid="r")
        async with await shard.engine.submit(request) as call:
            assert not call.is_single
            await call.wait()
            assert [(one.index, one.text) for one in call.samples] == [
                (0, "ab"),
                (1, "ab"),
                (2, "ab"),
                (3, "xy"),
                (4, "xy"),
                (5, "xy"),
            ]
            assert [one.cached_tokens for one in call.samples] == [5, 5, 5, 2, 2, 2]
            assert len({one.public_id for one in call.samples}) == 6
        sent = [(one.sampling_params.max_new_tokens, one.stream) for one in shard.simulated.requests()]
        assert sent == [(0, False)] * 2 + [(2, False)] * 6
        assert shard.slot.get(Word.REQUESTS) == shard.slot.get(Word.FINISHED) == 6

    with_shard(tmp_path, scenario, codec=codec)


def test_every_item_of_a_batch_has_the_return_address(tmp_path: Path, codec: str) -> None:
    async def scenario(shard: Shard) -> None:
        await shard.engine.async_generate(input_ids=[[1], [2]], sampling_params={"max_new_tokens": 1})
        assert [one.http_worker_ipc for one in shard.simulated.requests()] == [shard.worker.endpoint] * 2

    with_shard(tmp_path, scenario, codec=codec)


def test_leaving_a_call_aborts_each_sample_once(tmp_path: Path, codec: str) -> None:
    async def scenario(shard: Shard) -> None:
        for first in (False, True):
            request = ids_request(sampling_params=ENDLESS | {"n": 3}, stream=True)
            async with await shard.engine.submit(request) as call:
                if first:
                    await call.first()
                rids = [one.rid for one in call.samples]
            call.cancel()
            await shard.idle()
            aborts = [m.rid for m in shard.simulated.received if m.__struct_name__ == "AbortReq"]
            assert [aborts.count(rid) for rid in rids] == [1, 1, 1]
            assert {one.finish_reason["type"] for one in call.samples if one.finish_reason} == {"abort"}
        assert shard.slot.get(Word.ABORTED) == 6
        assert shard.slot.get(Word.ACTIVE) == 0

    with_shard(tmp_path, scenario, codec=codec, step_seconds=0.001)


def test_a_client_that_goes_while_the_warm_up_runs_leaves_nothing(tmp_path: Path) -> None:
    async def scenario(shard: Shard) -> None:
        shard.simulated.set_faults(stall=True)
        task = asyncio.create_task(shard.engine.submit(ids_request(sampling_params={"n": 2}, rid="r")))
        while not shard.worker.active:
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await shard.idle()
        shard.simulated.set_faults(stall=False)
        await shard.engine.async_generate(input_ids=[1], sampling_params={"max_new_tokens": 1}, rid="r")

    with_shard(tmp_path, scenario)


def test_abort_by_the_clients_name(tmp_path: Path) -> None:
    async def scenario(shard: Shard) -> None:
        told: list[str] = []
        shard.engine.broadcast_abort = told.append
        batch = GenerateRequest(input_ids=[[1]] * 12, sampling_params=ENDLESS, rid="x", stream=True)
        async with await shard.engine.submit(batch) as call:
            await call.first()
            assert shard.engine.abort("x_1")
            await asyncio.sleep(0.05)
            assert [one.index for one in call.samples if one.finished] == [1]
            assert call.samples[1].public_id == "x_1"
            assert shard.engine.abort(call.samples[2].rid)
            assert not shard.engine.abort("y")
            assert not shard.engine.abort_local("y")
            assert told == ["y"]
            assert await asyncio.to_thread(shard.engine.abort, "x"), "any thread will do"
            await call.wait()
            assert shard.simulated.aborted.count(call.samples[1].rid) == 1
        await shard.idle()
        assert not shard.engine.abort_local("x")

    with_shard(tmp_path, scenario, step_seconds=0.002)


def test_abort_of_everything(tmp_path: Path) -> None:
    async def scenario(shard: Shard) -> None:
        async with await shard.engine.submit(ids_request(sampling_params=ENDLESS)) as call:
            shard.engine.abort(abort_all=True)
            await call.wait()
            assert call.samples[0].finish_reason is not None
            assert call.samples[0].finish_reason["type"] == "abort"

    with_shard(tmp_path, scenario, step_seconds=0.002)


def test_an_active_name_cannot_be_taken_twice(tmp_path: Path) -> None:
    async def scenario(shard: Shard) -> None:
        async with await shard.engine.submit(ids_request(sampling_params=ENDLESS, rid="r", stream=True)):
            with pytest.raises(RequestRejected, match="Duplicate request ID detected: r"):
                await shard.engine.submit(ids_request(rid="r"))
        await shard.idle()
        async with await shard.engine.submit(ids_request(rid="r")) as call:
            await call.wait()

    with_shard(tmp_path, scenario, step_seconds=0.001)


def test_what_the_scheduler_refuses_ends_with_its_status(tmp_path: Path, codec: str) -> None:
    async def scenario(shard: Shard) -> None:
        async def one() -> int:
            try:
                await shard.engine.async_generate(input_ids=[1], sampling_params={"max_new_tokens": 20})
            except EngineRejected as exc:
                return exc.status
            return 200

        async with asyncio.timeout(10):
            statuses = await asyncio.gather(*(one() for _ in range(12)))
        assert set(statuses) == {200, 503}
        with pytest.raises(EngineRejected, match="Failed to compile") as caught:
            await shard.engine.async_generate(input_ids=[1], sampling_params={"regex": "("})
        assert caught.value.status == 400
        assert shard.slot.get(Word.ACTIVE) == 0

    with_shard(tmp_path, scenario, codec=codec, max_running=1, max_queued=1, step_seconds=0.002)


def test_refused_requests_leave_nothing(tmp_path: Path) -> None:
    async def scenario(shard: Shard) -> None:
        for bad in (
            {"input_ids": [10**6]},
            {"sampling_params": {"temperature": "hot"}},
            {"input_ids": None, "text": ""},
            {"return_routed_experts": "x"},
            {"routing_key": 3},
            {"session_params": {"id": 3}},
            {"session_params": {"unknown": "x"}},
            {"require_reasoning": "yes"},
        ):
            with pytest.raises(RequestRejected):
                await shard.engine.submit(ids_request(**{"rid": "r"} | bad if "session_params" not in bad else bad))
        assert shard.simulated.requests() == []
        await shard.engine.async_generate(input_ids=[1], sampling_params={"max_new_tokens": 1}, rid="r")

    with_shard(tmp_path, scenario)
