"""The worker when things go wrong: pauses, broken frames, a silent or dead engine, the end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import pickle
from pathlib import Path
from typing import Any

import pytest

from sglang_subgw.contract import Word
from sglang_subgw.errors import EngineUnavailable
from sglang_subgw.simulated import SimulatedEngine
from sglang_subgw.worker.requests.request import GenerateRequest
from support.shard_values import Shard, shard_of, with_shard

pytestmark = pytest.mark.usefixtures("needs_tokenizers")


def ids_request(**fields: Any) -> GenerateRequest:
    return GenerateRequest(**({"input_ids": [104, 105], "sampling_params": {"max_new_tokens": 4}} | fields))


ENDLESS = {"max_new_tokens": 3000}


def test_a_pause_holds_new_requests_on_every_shard(tmp_path: Path, codec: str) -> None:
    async def run(simulated: SimulatedEngine) -> None:
        async with shard_of(simulated) as first, shard_of(simulated, index=1) as second, asyncio.timeout(10):
            assert await second.engine.health_generate(5)
            first.worker.send("PauseGenerationReqInput", {"mode": "in_place"})
            while not (first.worker.gate.paused and second.worker.gate.paused):
                await asyncio.sleep(0.001)
            tasks = [asyncio.create_task(shard.engine.submit(ids_request())) for shard in (first, second)]
            await asyncio.sleep(0.02)
            assert [task.done() for task in tasks] == [False, False]
            second.worker.send("ContinueGenerationReqInput", {})
            for task in tasks:
                async with await task as call:
                    await call.wait()

    with SimulatedEngine(tmp_path, codec=codec) as simulated:
        asyncio.run(run(simulated))
        assert simulated.violations == []


def _broken_outputs(codec: str, rids: Any) -> bytes:
    if codec == "pickle":
        head = b"\x80\x04cmsgspec._utils\nrebuild\ncsglang.srt.managers.io_struct\nBatchStrOutput\n"
        return head + pickle.dumps({"rids": rids}, 3)[2:-1] + b"\x86R."
    import msgspec

    return msgspec.msgpack.encode(["BatchStrOutput", rids])


def test_frames_that_cannot_be_read_do_no_harm(tmp_path: Path, codec: str, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(shard: Shard) -> None:
        caplog.set_level(logging.ERROR)
        for frame in (b"", b"junk", b"\x80\x04N.", b"\x93\xa1x\xc0\xc0") * 3:
            shard.simulated.send_frame(shard.worker.endpoint, frame)
        for rids in (None, 3, [None], [["x"]]):
            shard.worker._on_frames([_broken_outputs(codec, rids)])
        shard.simulated.send_message(shard.worker.endpoint, "AbortReq", rid="someone")
        shard.simulated.send_message(shard.worker.endpoint, "FlushCacheReqOutput", success=True)
        out: Any = await shard.engine.async_generate("hello", {"max_new_tokens": 1})
        assert out["text"] == "hello"
        while shard.slot.get(Word.MESSAGES) < 19:
            await asyncio.sleep(0.001)
        assert shard.worker.undecodable == 16
        assert len(caplog.records) == 1
        assert shard.slot.get(Word.UNKNOWN_RIDS) == 1

    with_shard(tmp_path, scenario, codec=codec)


def test_one_unusable_output_costs_one_sample(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(shard: Shard) -> None:
        request = GenerateRequest(input_ids=[[1], [2]], sampling_params=ENDLESS, stream=True)
        async with await shard.engine.submit(request) as call:
            await call.first()
            broken, whole = call.samples
            rids = [broken.rid, whole.rid]
            shard.worker._on_outputs({"rids": rids, "output_strs": [3, "x"], "output_ids": [3, [1]]})
            assert broken.error is not None
            assert not whole.finished
            await asyncio.sleep(0.02)
            assert shard.worker.active == 1

    with_shard(tmp_path, scenario, step_seconds=0.002)
    assert len(caplog.records) == 1


def test_the_engines_death_ends_everything(tmp_path: Path) -> None:
    async def scenario(shard: Shard) -> None:
        shard.simulated.set_faults(stall=True)
        call = await shard.engine.submit(ids_request())
        asking = asyncio.create_task(shard.engine.control.ask("GetInternalStateReq", {}, "Never", 5))
        health = asyncio.create_task(shard.engine.health_generate(5))
        await asyncio.sleep(0.01)
        shard.engine.fail_all(EngineUnavailable("The engine died."), for_good=True)
        with pytest.raises(EngineUnavailable, match="died"):
            await call.wait()
        with pytest.raises(EngineUnavailable, match="died"):
            await asking
        assert not await shard.engine.health_generate(5)
        with pytest.raises(EngineUnavailable, match="died"):
            await shard.engine.submit(ids_request())
        assert shard.slot.get(Word.ACTIVE) == 0
        assert shard.slot.get(Word.FAILED) == 1
        await health

    with_shard(tmp_path, scenario)


def test_what_does_not_drain_is_aborted_in_the_engine(tmp_path: Path) -> None:
    async def scenario(shard: Shard) -> None:
        call = await shard.engine.submit(ids_request(sampling_params=ENDLESS, stream=True))
        await call.first()
        shard.engine.fail_all(EngineUnavailable("The server is stopping."))
        assert call.samples[0].error is not None
        assert await asyncio.to_thread(shard.simulated.wait_idle)
        assert shard.simulated.aborted == [call.samples[0].rid]

    with_shard(tmp_path, scenario, step_seconds=0.001)


def test_health_is_any_sign_of_life(tmp_path: Path) -> None:
    async def scenario(shard: Shard) -> None:
        shard.simulated.set_faults(router_silent=True)
        assert not await shard.engine.health_generate(0.05)
        beat = asyncio.get_running_loop().call_later(
            0.05, shard.simulated.send_message, shard.worker.endpoint, "HealthCheckOutput"
        )
        assert await shard.engine.health_generate(5)
        beat.cancel()
        assert shard.slot.get(Word.UNKNOWN_RIDS) == 0
        assert shard.worker.last_receive > 0

    with_shard(tmp_path, scenario)


def test_control_answers(tmp_path: Path, codec: str) -> None:
    async def scenario(shard: Shard) -> None:
        flushes = await asyncio.gather(*(shard.engine.async_flush_cache() for _ in range(3)))
        assert [flush.success for flush in flushes] == [True] * 3
        [state] = await shard.engine.async_get_internal_state()
        assert state["model_path"] == "simulated-model"
        assert shard.engine.shards()[0]["active"] == 0

    with_shard(tmp_path, scenario, codec=codec)


def test_nothing_can_be_sent_after_the_end(tmp_path: Path) -> None:
    async def run(simulated: SimulatedEngine) -> None:
        async with shard_of(simulated) as shard:
            call = await shard.engine.submit(ids_request(sampling_params=ENDLESS))
        assert call.samples[0].error is not None
        call.cancel()
        with pytest.raises(EngineUnavailable):
            await shard.engine.submit(ids_request())
        with contextlib.suppress(EngineUnavailable):
            shard.engine.abort(abort_all=True)
        await shard.worker.close()

    with SimulatedEngine(tmp_path, step_seconds=0.001) as simulated:
        asyncio.run(run(simulated))
        assert simulated.wait_idle()


def test_an_end_that_is_cancelled_halfway_leaves_no_socket(tmp_path: Path) -> None:
    # As a loop that is being closed does to a shard whose main task is already leaving.
    async def run(simulated: SimulatedEngine) -> None:
        shard = Shard(simulated)
        await shard.worker.start()
        change = asyncio.create_task(shard.worker.finishing.within(contextlib.nullcontext(), asyncio.Event().wait))
        await asyncio.sleep(0)
        closing = asyncio.create_task(shard.worker.close())
        await asyncio.sleep(0)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        change.cancel()

    with SimulatedEngine(tmp_path, step_seconds=0.001) as simulated:
        asyncio.run(run(simulated))
        assert simulated.wait_idle()


def test_many_at_once(tmp_path: Path, codec: str) -> None:
    async def scenario(shard: Shard) -> None:
        async def one(number: int) -> bool:
            prompt = [number % 250 + 1, (number + 7) % 250 + 1]
            out: Any = await shard.engine.async_generate(input_ids=prompt, sampling_params={"max_new_tokens": 16})
            return bool(out["output_ids"] == prompt * 8)

        assert all(await asyncio.gather(*(one(number) for number in range(300))))
        assert shard.slot.get(Word.COMPLETION_TOKENS) == 300 * 16
        assert shard.slot.get(Word.CHUNKS) >= 300

    with_shard(tmp_path, scenario, codec=codec)


def test_older_engines_send_one_message_per_request(tmp_path: Path) -> None:
    async def scenario(shard: Shard) -> None:
        outs: Any = await shard.engine.async_generate(["hello"] * 5, {"max_new_tokens": 3})
        assert [out["text"] for out in outs] == ["hellohellohello"] * 5

    with_shard(tmp_path, scenario, grouped=False)
