"""`sglang_subgw.Gateway`: its life in both forms, whoever starts and stops it, and whenever."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import sglang_subgw
from sglang_subgw.config import GatewayConfig, Mode
from sglang_subgw.embed import gateway as embedded
from sglang_subgw.errors import ConfigError, EngineDied, ModeUnavailable, StartStopped
from sglang_subgw.gateway import ShardGateway
from sglang_subgw.simulated import SimulatedEngine
from support.client import async_client, client, raw_request, read_until
from support.modes import needs
from support.stack import echoed, generate_body


@pytest.fixture
def engine(runtime_dir: Path) -> Iterator[SimulatedEngine]:
    with SimulatedEngine(runtime_dir, step_seconds=0.005) as engine:
        yield engine
        assert engine.violations == []


def made(engine: object, **settings: Any) -> sglang_subgw.Gateway:
    return sglang_subgw.Gateway(
        engine, **({"shards": 1, "mode": Mode.PROCESS, "port": 0, "log_level": "warning"} | settings)
    )


def text(gateway: sglang_subgw.Gateway, tokens: int = 6) -> str:
    with client(gateway.address) as one:
        return str(one.post("/generate", json=generate_body("<01>", tokens)).json()["text"])


async def async_text(gateway: sglang_subgw.Gateway, tokens: int = 6) -> str:
    async with async_client(gateway.address) as one:
        return str((await one.post("/generate", json=generate_body("<01>", tokens))).json()["text"])


def refuses(gateway: sglang_subgw.Gateway) -> bool:
    with pytest.raises(httpx.ConnectError):
        text(gateway)
    return True


def in_threads(*calls: Callable[[], object]) -> list[BaseException | object]:
    """What each returns or raises, all at once in threads of their own."""
    results: list[BaseException | object] = [None] * len(calls)

    def run(number: int) -> None:
        try:
            results[number] = calls[number]()
        except BaseException as exc:
            results[number] = exc

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()
    return results


class Held:
    """A start that waits, between its engine and its first shard, until it is let go or broken off."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun = threading.Event()
        self.goes_on = threading.Event()
        self.thread: threading.Thread | None = None
        start, cancel = ShardGateway.start, ShardGateway.cancel_start

        def held_start(gateway: ShardGateway) -> None:
            self.thread = threading.current_thread()
            self.begun.set()
            assert self.goes_on.wait(20)
            start(gateway)

        def cancel_start(gateway: ShardGateway, timeout: float) -> None:
            cancel(gateway, timeout)
            self.goes_on.set()

        monkeypatch.setattr(ShardGateway, "start", held_start)
        monkeypatch.setattr(ShardGateway, "cancel_start", cancel_start)


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Held:
    return Held(monkeypatch)


# Both forms.


def test_a_context_in_which_it_serves(engine: SimulatedEngine, mode: Mode):
    with made(engine, mode=mode, shards=2) as gateway:
        assert [shard["state"] for shard in gateway.shards] == ["ready", "ready"]
        assert gateway.config.mode is mode
        assert gateway.engine is engine
        assert text(gateway) == echoed("<01>", 6)
    assert gateway.has_ended
    assert refuses(gateway)
    assert engine.router_alive()


def test_an_asynchronous_context_in_which_it_serves(engine: SimulatedEngine, mode: Mode):
    async def run() -> None:
        async with made(engine, mode=mode, shards=2) as gateway:
            assert await async_text(gateway) == echoed("<01>", 6)
            async with sglang_subgw.attach(gateway.engine_name) as attached:
                out: Any = await attached.async_generate("<02>", {"max_new_tokens": 5})
                assert out["text"] == echoed("<02>", 5)
        assert gateway.has_ended
        assert refuses(gateway)

    asyncio.run(run())
    assert engine.router_alive()


def test_neither_start_nor_stop_is_in_the_way_of_the_loop(engine: SimulatedEngine, held: Held):
    async def run() -> None:
        gateway = made(engine)
        start = asyncio.create_task(gateway.async_start())
        while not held.begun.is_set():
            await asyncio.sleep(0.001)
        assert held.thread is not threading.current_thread()
        ready = asyncio.create_task(gateway.async_ready())
        await asyncio.sleep(0)
        assert not ready.done()
        held.goes_on.set()
        await asyncio.gather(start, ready)
        stop = asyncio.create_task(gateway.async_stop())
        turns = 0
        while not stop.done():
            await asyncio.sleep(0)
            turns += 1
        assert turns > 10

    asyncio.run(run())


def test_blocking_within_a_running_loop_it_serves_as_well(engine: SimulatedEngine):
    async def run() -> str:
        with made(engine) as gateway:
            return await async_text(gateway)

    assert asyncio.run(run()) == echoed("<01>", 6)


def test_started_in_one_thread_waited_for_in_others_stopped_in_another(engine: SimulatedEngine, held: Held):
    gateway = made(engine)
    with pytest.raises(TimeoutError):
        gateway.ready(0.01)

    def wait_and_serve() -> str:
        held.begun.wait(10)
        held.goes_on.set()
        gateway.ready(10)
        return text(gateway)

    assert in_threads(gateway.start, wait_and_serve, wait_and_serve) == [None, echoed("<01>", 6), echoed("<01>", 6)]
    assert gateway.serves
    assert not gateway.wait(0.01)
    assert in_threads(gateway.stop, gateway.stop, gateway.wait) == [None, None, True]
    assert refuses(gateway)
    gateway.stop()


def test_it_is_started_once(engine: SimulatedEngine):
    with made(engine) as gateway:
        with pytest.raises(RuntimeError, match="is started once"):
            gateway.start()
        with pytest.raises(RuntimeError, match="is started once"):
            asyncio.run(gateway.async_start())
        assert text(gateway) == echoed("<01>", 6)
    with pytest.raises(RuntimeError, match="make another"):
        gateway.start()


def test_two_starts_at_once_are_one(engine: SimulatedEngine):
    gateway = made(engine)
    results = in_threads(gateway.start, gateway.start)
    assert sorted(type(result).__name__ for result in results) == ["NoneType", "RuntimeError"]
    gateway.ready()
    assert text(gateway) == echoed("<01>", 6)
    gateway.stop()


# A stop before, and during, the start.


def test_stopped_before_it_is_started_it_does_not_start(engine: SimulatedEngine):
    gateway = made(engine)
    gateway.stop()
    with pytest.raises(RuntimeError, match="started or stopped"):
        gateway.start()
    with pytest.raises(StartStopped, match="stopped before it was started"):
        gateway.ready(1)
    assert gateway.has_ended
    assert gateway.shards == []


def test_drained_before_it_is_started_it_does_not_start_either(engine: SimulatedEngine):
    gateway = made(engine)
    gateway.drain()
    with pytest.raises(RuntimeError, match="started or stopped"):
        gateway.start()


def test_a_stop_during_the_start_ends_it(engine: SimulatedEngine, held: Held, mode: Mode):
    gateway = made(engine, mode=mode)

    def stop() -> None:
        held.begun.wait(10)
        gateway.stop()
        assert gateway.has_ended

    started, stopped, ready = in_threads(gateway.start, stop, gateway.ready)
    assert stopped is None
    assert isinstance(started, StartStopped)
    assert "The start was stopped" in str(started)
    assert ready is started


def test_a_drain_during_the_start_ends_it(engine: SimulatedEngine, held: Held):
    gateway = made(engine)

    def drain() -> None:
        held.begun.wait(10)
        gateway.drain()

    started, drained = in_threads(gateway.start, drain)
    assert isinstance(started, StartStopped)
    assert drained is None


def test_cancelled_during_the_start_it_leaves_nothing_behind(engine: SimulatedEngine, held: Held, mode: Mode):
    gateway = made(engine, mode=mode)

    async def run() -> None:
        async with gateway:
            raise AssertionError("it was entered")

    async def cancel() -> None:
        task = asyncio.create_task(run())
        while not held.begun.is_set():
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert gateway.has_ended

    asyncio.run(cancel())


def test_cancelled_as_the_start_ends_it_leaves_nothing_behind_either(
    engine: SimulatedEngine, monkeypatch: pytest.MonkeyPatch
):
    gateway = made(engine)

    async def run() -> None:
        async def cancelled(call: Callable[[], object]) -> None:
            call()
            raise asyncio.CancelledError

        monkeypatch.setattr(embedded, "in_thread", cancelled)
        with pytest.raises(asyncio.CancelledError):
            await gateway.async_start()

    asyncio.run(run())
    assert gateway.has_ended


def test_a_time_limit_around_the_start_is_one(engine: SimulatedEngine):
    engine.set_faults(router_silent=True)
    gateway = made(engine)

    async def run() -> None:
        async with asyncio.timeout(0.5):
            async with gateway:
                raise AssertionError("it was entered")

    with pytest.raises(TimeoutError):
        asyncio.run(run())
    assert gateway.has_ended
    engine.set_faults(router_silent=False)


def test_a_cancellation_waits_for_a_stop_that_is_under_way(engine: SimulatedEngine):
    async def run() -> None:
        gateway = made(engine)
        await gateway.async_start()
        stop = asyncio.create_task(gateway.async_stop())
        await asyncio.sleep(0)
        stop.cancel()
        with pytest.raises(asyncio.CancelledError):
            await stop
        assert gateway.has_ended

    asyncio.run(run())


# Failures and ends.


@needs(Mode.SUBINTERP)
def test_a_start_that_fails_does_so_for_everybody_who_waits_for_it(engine: SimulatedEngine):
    pytest.importorskip("fastapi")
    gateway = made(engine, mode=Mode.SUBINTERP, images="auto,-pydantic_core", app="support.apps.fast:app")
    started, ready = in_threads(gateway.start, gateway.ready)
    assert isinstance(started, ModeUnavailable)
    assert ready is started

    async def run() -> None:
        with pytest.raises(ModeUnavailable):
            await gateway.async_ready()
        await gateway.async_wait()

    asyncio.run(run())
    assert not gateway.serves


def test_a_taken_port_is_told_before_anything_is_started(engine: SimulatedEngine):
    with made(engine) as gateway, pytest.raises(ConfigError, match="can't be listened on"):
        made(None, port=gateway.address[1]).start()


def test_drain_lets_what_runs_finish(engine: SimulatedEngine):
    with made(engine) as gateway:
        sock = raw_request(gateway.address, "/generate", generate_body("abc", 50))
        engine.wait_for(lambda: engine.running() == 1)
        gateway.drain(30)
        assert b"200 OK" in read_until(sock, b"\r\n\r\n")
        sock.close()
        assert gateway.has_ended
        assert not gateway.failure


def test_a_drain_goes_on_without_those_that_were_cancelled_waiting_for_it(engine: SimulatedEngine):
    async def run() -> None:
        async with made(engine) as gateway, async_client(gateway.address) as one:
            answer = asyncio.create_task(one.post("/generate", json=generate_body("<01>", 100)))
            while engine.running() == 0:
                await asyncio.sleep(0.001)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.01):
                    await gateway.async_drain(30)
            await gateway.async_wait()
            assert (await answer).json()["text"] == echoed("<01>", 100)

    asyncio.run(run())


def test_the_end_of_its_engine_is_told_with_its_reason(engine: SimulatedEngine):
    async def run() -> None:
        async with made(engine) as gateway:
            waiting = [asyncio.create_task(gateway.async_wait()) for _ in range(2)]
            cancelled = asyncio.create_task(gateway.async_wait())
            await asyncio.sleep(0)
            cancelled.cancel()
            engine.crash("it ran out of memory")
            await asyncio.gather(*waiting)
            assert "it ran out of memory" in gateway.failure
            with pytest.raises(EngineDied, match="it ran out of memory"):
                gateway.raise_failure()
            with pytest.raises(EngineDied, match="it ran out of memory"):
                await gateway.async_drain()

    asyncio.run(run())


def test_shards_are_restarted_and_resized_by_it(engine: SimulatedEngine):
    def until(condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 20
        while not condition():
            assert time.monotonic() < deadline
            time.sleep(0.01)

    with made(engine) as gateway:
        gateway.restart_shards(0)
        until(lambda: gateway.shards[0]["generation"] == 2 and gateway.shards[0]["state"] == "ready")
        gateway.resize(2)
        until(lambda: [shard["state"] for shard in gateway.shards] == ["ready", "ready"])
        assert gateway.config.shards == 2
        with pytest.raises(ConfigError):
            gateway.restart_shards(7)


# Its settings.


def test_keywords_are_its_settings_and_change_those_that_are_given(engine: SimulatedEngine):
    config = GatewayConfig(shards=3, port=0, mode=Mode.PROCESS)
    gateway = sglang_subgw.Gateway(engine, config, shards=1, drain_timeout_seconds=3, app="support.apps.plain:app")
    assert gateway.config == GatewayConfig(
        shards=1, port=0, mode=Mode.PROCESS, drain_timeout_seconds=3, app="support.apps.plain:app"
    )
    assert sglang_subgw.Gateway(engine).config == GatewayConfig()


def test_an_application_is_given_as_it_is(engine: SimulatedEngine):
    from support.apps import plain

    with made(engine, app=plain.app) as gateway, client(gateway.address) as one:
        assert gateway.config.app == "support.apps.plain:app"
        assert one.get("/").status_code in (200, 404)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"model_path": "x", "tp_size": 2}, "model_path, tp_size: a gateway has no such setting"),
        ({"shards": 0}, "shards must be from 1"),
        ({"mode": "fast"}, "mode must be one of"),
        ({"app": lambda scope, receive, send: None}, "can't be imported by a shard"),
    ],
    ids=["two in one", "shards", "mode", "app"],
)
def test_a_wrong_setting_is_named(engine: SimulatedEngine, settings: dict[str, Any], said: str):
    with pytest.raises(ConfigError, match=said):
        sglang_subgw.Gateway(engine, **settings)


def test_what_it_does_not_have_yet_is_said(engine: SimulatedEngine):
    gateway = made(engine)
    assert (gateway.shards, gateway.failure, gateway.serves, gateway.has_ended) == ([], "", False, False)
    for name in ("engine", "engine_name", "urls", "address"):
        with pytest.raises(RuntimeError, match="has not started yet"):
            getattr(gateway, name)
    with pytest.raises(RuntimeError, match="has not started yet"):
        gateway.resize(2)
