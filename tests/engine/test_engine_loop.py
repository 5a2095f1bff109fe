"""The engine's event loop: synchronous methods in any thread, several at once; its end leaves nobody waiting."""

from __future__ import annotations

import asyncio
import threading
import types
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from typing import Any

import pytest
import zmq

from sglang_subgw.engine.engine_loop import EngineLoop
from sglang_subgw.errors import EngineUnavailable
from support.engine_fakes import Engine

SECONDS = 10


@pytest.fixture
def stock() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    yield loop
    assert asyncio.all_tasks(loop) == set()
    loop.close()


@pytest.fixture
def engine(stock: asyncio.AbstractEventLoop) -> Engine:
    return Engine(stock)


@pytest.fixture
def running(engine: Engine) -> Iterator[EngineLoop]:
    loop = EngineLoop(engine)
    loop.start()
    yield loop
    loop.close()


async def never(began: threading.Event) -> None:
    began.set()
    await asyncio.Event().wait()


def test_a_synchronous_method_works_in_the_main_thread_and_in_others(running: EngineLoop, engine: Engine) -> None:
    manager = engine.tokenizer_manager
    here = engine.do(manager.where())
    with ThreadPoolExecutor(1) as pool:
        there = pool.submit(lambda: engine.do(manager.where())).result(SECONDS)
    assert here == there
    assert here[0] is not threading.main_thread()
    assert here[1] is running.loop


def test_two_synchronous_methods_run_at_once(running: EngineLoop, engine: Engine) -> None:
    barrier = asyncio.Barrier(2)
    with ThreadPoolExecutor(2) as pool:
        both = [pool.submit(lambda: engine.do(engine.tokenizer_manager.meet(barrier))) for _ in range(2)]
        assert sorted(one.result(SECONDS) for one in both) == [0, 1]


def test_what_a_method_raises_is_raised(running: EngineLoop, engine: Engine) -> None:
    with pytest.raises(ValueError, match="as it is"):
        engine.do(engine.tokenizer_manager.fail())


def test_a_generator_is_advanced_as_engine_s_generate_does(running: EngineLoop, engine: Engine) -> None:
    numbers = engine.tokenizer_manager.count()
    assert [engine.do(anext(numbers)) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(StopAsyncIteration):
        engine.do(anext(numbers))


def test_another_event_loop_awaits_a_call_and_cancels_it(running: EngineLoop, engine: Engine) -> None:
    cancelled = threading.Event()

    async def until_cancelled(began: threading.Event) -> None:
        try:
            await never(began)
        finally:
            cancelled.set()

    async def other() -> Any:
        where = await running.call(engine.tokenizer_manager.where())
        began = threading.Event()
        task = asyncio.create_task(running.call(until_cancelled(began)))
        await asyncio.to_thread(began.wait, SECONDS)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return where

    assert asyncio.run(other())[1] is running.loop
    assert cancelled.wait(SECONDS)


def test_another_event_loop_takes_a_stream_and_leaves_it(running: EngineLoop, engine: Engine) -> None:
    manager = engine.tokenizer_manager

    async def other() -> None:
        assert [number async for number in running.stream(manager.count())] == [0, 1, 2]
        with pytest.raises(ValueError, match="after 0"):
            assert [number async for number in running.stream(manager.count(fail_after=0))] == [0]
        async with aclosing(running.stream(manager.count(pause=asyncio.Event()))) as numbers:
            assert await anext(numbers) == 0
        assert await asyncio.to_thread(manager.left.wait, SECONDS)
        running.fail("the scheduler is gone")
        with pytest.raises(EngineUnavailable, match="^the scheduler is gone$"):
            await anext(running.stream(manager.count()))

    asyncio.run(other())


def test_the_loop_does_not_wait_for_itself(running: EngineLoop, engine: Engine) -> None:
    async def synchronous() -> None:
        engine.do(engine.tokenizer_manager.where())

    with pytest.raises(RuntimeError, match="await the async form"):
        engine.do(synchronous())


def test_the_manager_receives_and_goes_on_after_a_bad_message(
    running: EngineLoop, engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    manager = engine.tokenizer_manager
    for item in (ValueError("bad message"), "good"):
        manager.handled.clear()
        running.loop.call_soon_threadsafe(manager.inbox.put_nowait, item)
        assert manager.handled.wait(SECONDS)
    engine.do(manager.where())
    assert manager.received == ["good"]
    assert "dropped a message: ValueError('bad message')" in caplog.text


def test_without_its_socket_every_call_ends_with_the_reason(running: EngineLoop, engine: Engine) -> None:
    began = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(lambda: engine.do(never(began)))
        assert began.wait(SECONDS)
        running.loop.call_soon_threadsafe(engine.tokenizer_manager.inbox.put_nowait, zmq.ZMQError(zmq.ENOTSOCK))
        with pytest.raises(EngineUnavailable, match="can't receive any more"):
            call.result(SECONDS)


def test_the_engine_s_death_ends_those_who_wait_and_refuses_others(running: EngineLoop, engine: Engine) -> None:
    began = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(lambda: engine.do(never(began)))
        assert began.wait(SECONDS)
        running.fail("the scheduler is gone")
        running.fail("something else")
        for wait in (lambda: call.result(SECONDS), lambda: engine.do(never(began))):
            with pytest.raises(EngineUnavailable, match="^the scheduler is gone$"):
                wait()


def test_closing_ends_those_who_wait_and_gives_the_loop_back(
    running: EngineLoop, engine: Engine, stock: asyncio.AbstractEventLoop
) -> None:
    began = threading.Event()

    async def other() -> None:
        call = asyncio.create_task(running.call(never(began)))
        await asyncio.to_thread(began.wait, SECONDS)
        await asyncio.to_thread(running.close)
        with pytest.raises(EngineUnavailable, match="is being stopped"):
            await call

    asyncio.run(other())
    running.close()
    assert engine.loop is stock
    assert not stock.is_running()
    assert asyncio.all_tasks(stock) == set()
    assert engine.tokenizer_manager.event_loop is None
    assert engine.do(engine.tokenizer_manager.where()) == (threading.current_thread(), stock)


def test_a_loop_that_its_maker_runs_is_used_as_it_is() -> None:
    async def program() -> None:
        loop = asyncio.get_running_loop()
        engine = Engine(loop)
        engine_loop = EngineLoop(engine)
        threads = threading.active_count()
        engine_loop.start()
        assert threading.active_count() == threads
        where = engine.tokenizer_manager.where
        assert await asyncio.to_thread(lambda: engine.do(where())) == (threading.current_thread(), loop)
        began = threading.Event()
        waiting = asyncio.create_task(asyncio.to_thread(lambda: engine.do(never(began))))
        await asyncio.to_thread(began.wait, SECONDS)
        engine_loop.close()
        with pytest.raises(EngineUnavailable, match="is being stopped"):
            await waiting
        assert engine.loop is loop

    asyncio.run(program())


def test_the_loop_on_which_the_manager_already_receives_is_the_one(stock: asyncio.AbstractEventLoop) -> None:
    engine = Engine(stock)

    async def program() -> None:
        manager = engine.tokenizer_manager
        manager.event_loop = asyncio.get_running_loop()
        loop = EngineLoop(engine)
        loop.start()
        assert (await asyncio.to_thread(lambda: engine.do(manager.where())))[1] is manager.event_loop
        loop.close()
        assert manager.event_loop is asyncio.get_running_loop()

    asyncio.run(program())
    assert engine.loop is stock


def test_a_maker_s_loop_that_has_ended_is_named() -> None:
    engine = None

    async def program() -> EngineLoop:
        nonlocal engine
        engine = Engine(asyncio.get_running_loop())
        loop = EngineLoop(engine)
        loop.start()
        return loop

    loop = asyncio.run(program())
    with pytest.raises(EngineUnavailable, match="was made in does not run"):
        engine.do(engine.tokenizer_manager.where())
    loop.close()


def test_other_attributes_are_the_real_loop_s(running: EngineLoop, engine: Engine) -> None:
    assert engine.loop.is_running()
    assert isinstance(engine.loop.call_soon_threadsafe, types.MethodType | types.BuiltinMethodType)
