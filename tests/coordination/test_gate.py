"""When a worker may send: the gate, and an engine made quiet for a change that all workers must keep away from."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sglang_subgw.coordination.gate import Gate
from sglang_subgw.errors import EngineUnavailable, RequestRejected
from sglang_subgw.simulated import SimulatedEngine
from support.shard_values import Shard, shard_of, with_two

RELEASE = "ReleaseMemoryOccupationReqInput"
LOAD = "LoadLoRAAdapterReqInput"
ONE = {"max_new_tokens": 1}


async def until(condition: Callable[[], object]) -> None:
    while not condition():
        await asyncio.sleep(0.001)


def busy() -> None:
    """As a tokenization, or a collection, keeps a loop."""
    time.sleep(0.003)


async def settled(shard: Shard) -> None:
    """Until the engine has read whatever this shard has sent, and could have sent meanwhile."""
    for _ in range(2):
        await shard.engine.async_get_internal_state()


async def left(*tasks: asyncio.Task[Any]) -> None:
    """Nobody waits for them any longer."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def test_a_gate_that_closes_again_at_once_lets_nobody_through() -> None:
    async def scenario() -> None:
        gate = Gate()
        gate.set(held=True)
        passing = asyncio.create_task(gate.passed())
        await asyncio.sleep(0)
        gate.set(held=False)
        gate.set(held=True)
        for _ in range(5):
            await asyncio.sleep(0)
        assert not passing.done()
        gate.set(held=False)
        await passing

    asyncio.run(scenario())


def test_a_gate_that_was_given_up_stays_open() -> None:
    async def scenario() -> None:
        gate = Gate()
        gate.give_up()
        gate.set(paused=True)
        await gate.passed()

    asyncio.run(scenario())


def test_changes_one_after_the_other_meet_no_request_of_a_busy_shard(runtime_dir: Path) -> None:
    """On a loop of its own, which has several of the coordinator's messages to read at once."""
    while_held: list[object] = []
    sent: list[object] = []
    ready, changed = threading.Event(), threading.Event()

    async def client(shard: Shard) -> None:
        while not changed.is_set():
            await shard.engine.async_generate("x", ONE)

    async def asking() -> None:
        async with shard_of(simulated, index=1) as shard, asyncio.timeout(20), asyncio.TaskGroup() as clients:
            dispatch = shard.worker._outbound.dispatch

            def noted(*args: Any) -> Any:
                (while_held if shard.worker.gate.held else sent).append(args)
                return dispatch(*args)

            shard.worker._outbound.dispatch = noted  # type: ignore[method-assign]
            for _ in range(8):
                clients.create_task(client(shard))
            await until(lambda: sent)
            ready.set()
            while not changed.is_set():
                busy()
                await asyncio.sleep(0.001)

    async def changing() -> None:
        async with shard_of(simulated) as shard, asyncio.timeout(20):
            for _ in range(50):
                await shard.engine.async_begin_weight_update()
                await shard.engine.async_end_weight_update()

    with SimulatedEngine(runtime_dir) as simulated:
        thread = threading.Thread(target=asyncio.run, args=(asking(),))
        thread.start()
        try:
            assert ready.wait(20)
            asyncio.run(changing())
        finally:
            changed.set()
            thread.join()
        assert simulated.violations == []
    assert while_held == []


def test_a_request_that_loads_its_adapter_again_does_not_meet_a_pause_or_a_release(
    runtime_dir: Path, tmp_path: Path
) -> None:
    async def scenario(simulated: SimulatedEngine, first: Shard, second: Shard) -> None:
        for name in ("one", "two"):
            adapter = tmp_path / name
            adapter.mkdir()
            (adapter / "adapter_config.json").write_text(json.dumps({"r": 8}))
            assert (await first.engine.async_load_lora_adapter(name, str(adapter))).success
        simulated.control.delay(LOAD, 0.2)

        async def asking_while_loading(name: str) -> asyncio.Task[Any]:
            loads = len(simulated.control.messages(LOAD))
            task = asyncio.create_task(first.engine.async_generate("x", ONE, lora_path=name))
            await until(lambda: len(simulated.control.messages(LOAD)) > loads)
            return task

        async def loaded(name: str) -> None:
            """And the other one, which had to make room, is gone."""
            coordination = first.worker.coordination
            await until(lambda: [*first.engine.adapters()] == [name] and not coordination.state["pending_unloads"])
            await settled(first)

        asked = await asking_while_loading("one")
        await second.engine.async_pause_generation("in_place")
        await loaded("one")
        assert simulated.requests() == []
        await second.engine.async_continue_generation()
        await asked
        asked = await asking_while_loading("two")
        await second.engine.async_release_memory_occupation()
        await loaded("two")
        assert len(simulated.requests()) == 1
        await second.engine.async_resume_memory_occupation()
        await asked

    with_two(runtime_dir, scenario, features={"enable_lora": True, "max_loaded_loras": 1})


def test_memory_stays_released_when_the_shard_that_releases_it_dies(runtime_dir: Path) -> None:
    async def scenario(simulated: SimulatedEngine, first: Shard, second: Shard) -> None:
        with simulated.control.hold(RELEASE):
            releasing = asyncio.create_task(first.engine.async_release_memory_occupation())
            await until(lambda: simulated.control.messages(RELEASE))
            await first.worker.coordination.close()
        asked = asyncio.create_task(second.engine.async_generate("x", ONE))
        await settled(second)
        assert simulated.requests() == []
        await second.engine.async_resume_memory_occupation()
        await asked
        await left(releasing)

    with_two(runtime_dir, scenario)


def test_nobody_continues_an_engine_whose_memory_is_being_released(runtime_dir: Path) -> None:
    async def scenario(simulated: SimulatedEngine, first: Shard, second: Shard) -> None:
        await first.engine.async_pause_generation("retract")
        with simulated.control.hold(RELEASE):
            releasing = asyncio.create_task(first.engine.async_release_memory_occupation())
            await until(lambda: second.engine.released)
            continuing = asyncio.create_task(second.engine.async_continue_generation())
            await settled(second)
            assert not continuing.done()
        await releasing
        with pytest.raises(RequestRejected, match="First resume the memory that is released"):
            await continuing
        await first.engine.async_resume_memory_occupation()
        await second.engine.async_continue_generation()
        await second.engine.async_generate("x", ONE)

    with_two(runtime_dir, scenario)


def test_health_checks_and_a_release_do_not_meet(runtime_dir: Path) -> None:
    async def scenario(simulated: SimulatedEngine, first: Shard, second: Shard) -> None:
        checks: list[asyncio.Task[bool]] = []

        async def probe() -> None:
            while True:
                checks.append(asyncio.create_task(second.engine.health_generate(5.0)))
                await asyncio.sleep(0.001)

        probing = asyncio.create_task(probe())
        for _ in range(5):
            await first.engine.async_release_memory_occupation()
            assert await second.engine.health_generate(5.0)
            await first.engine.async_resume_memory_occupation()
        await left(probing)
        assert all(await asyncio.gather(*checks))

    with_two(runtime_dir, scenario, step_seconds=0.01)


def test_memory_is_not_released_under_a_health_check_that_is_paused(runtime_dir: Path) -> None:
    async def scenario(simulated: SimulatedEngine, first: Shard, second: Shard) -> None:
        await first.engine.async_pause_generation("in_place")
        second.worker._health_checks.begin()
        with pytest.raises(RequestRejected, match="1 requests are paused in the engine"):
            await first.engine.async_release_memory_occupation()
        assert simulated.control.messages(RELEASE) == []
        assert second.engine.released == set()
        second.worker._health_checks.end_one()
        await first.engine.async_continue_generation()

    with_two(runtime_dir, scenario)


def test_a_release_that_was_never_asked_for_leaves_nothing_released(runtime_dir: Path) -> None:
    async def scenario(simulated: SimulatedEngine, first: Shard, second: Shard) -> None:
        def fails(body: dict[str, Any]) -> int:
            raise ValueError("no")

        active = second.worker.coordination.handlers["active"]
        second.worker.coordination.handlers["active"] = fails
        with pytest.raises(EngineUnavailable, match="ValueError: no"):
            await first.engine.async_release_memory_occupation()
        second.worker.coordination.handlers["active"] = active
        await second.engine.async_generate("x", ONE)
        with pytest.raises(RequestRejected, match="It is not released"):
            await first.engine.async_resume_memory_occupation()

    with_two(runtime_dir, scenario)


def test_a_pause_for_a_moment_lets_no_change_meet_what_runs(runtime_dir: Path) -> None:
    async def scenario(simulated: SimulatedEngine, first: Shard, second: Shard) -> None:
        running = asyncio.create_task(second.engine.async_generate("x", {"max_new_tokens": 30}))
        await until(simulated.running)
        active: list[int] = []

        async def change() -> None:
            active.append(second.worker.active)

        changing = asyncio.create_task(first.engine.change_alone(change))
        await until(lambda: second.worker.gate.held)
        await settled(first)
        first.worker.gate.set(paused=True)
        first.worker.gate.set(paused=False)
        await running
        await changing
        assert active == [0]

    with_two(runtime_dir, scenario, step_seconds=0.01)


def test_a_change_that_waits_for_requests_goes_on_when_they_are_paused(runtime_dir: Path) -> None:
    async def scenario(simulated: SimulatedEngine, first: Shard, second: Shard) -> None:
        running = asyncio.create_task(first.engine.async_generate("x", {"max_new_tokens": 30}))
        await until(simulated.running)
        waiting = asyncio.create_task(first.engine.async_begin_weight_update())
        await until(lambda: second.worker.gate.held)
        await second.engine.async_pause_generation("in_place")
        assert (await waiting)[0]
        assert (await second.engine.async_end_weight_update())[0]
        assert not running.done()
        await second.engine.async_continue_generation()
        await running

    with_two(runtime_dir, scenario, step_seconds=0.05)


def test_an_update_that_aborts_does_not_wait_for_what_runs(runtime_dir: Path) -> None:
    async def scenario(simulated: SimulatedEngine, first: Shard, second: Shard) -> None:
        running = asyncio.create_task(second.engine.async_generate("x", {"max_new_tokens": 2_000}))
        await until(simulated.running)
        with pytest.raises(RequestRejected, match="no_such_option"):
            await first.engine.async_update_weights_from_disk("/m", abort_all_requests=True, no_such_option=1)
        assert simulated.aborted == []
        await first.engine.async_update_weights_from_disk("/m", abort_all_requests=True)
        assert (await running)["meta_info"]["finish_reason"]["type"] == "abort"

    with_two(runtime_dir, scenario, step_seconds=0.02)


def test_a_stream_that_is_dropped_unread_is_aborted(runtime_dir: Path) -> None:
    async def scenario(simulated: SimulatedEngine, first: Shard, second: Shard) -> None:
        stream = await first.engine.async_generate("x", {"max_new_tokens": 2_000}, stream=True)
        await until(simulated.running)
        del stream
        await until(lambda: simulated.running() == 0)
        other = await first.engine.async_generate("x", {"max_new_tokens": 2_000}, stream=True)
        assert not isinstance(other, (dict, list))
        await other.aclose()  # type: ignore[attr-defined]
        await until(lambda: first.worker.active == 0)
        assert len(simulated.aborted) == 2

    with_two(runtime_dir, scenario, step_seconds=0.02)
