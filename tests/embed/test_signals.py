"""Signals of a program with a gateway in it: left alone, unless it hands them over."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any, Final

import pytest

import sglang_subgw
from sglang_subgw.config import Mode
from sglang_subgw.embed import signals
from sglang_subgw.errors import ConfigError, EngineDied, StartStopped
from sglang_subgw.simulated import SimulatedEngine
from support.client import raw_request, read_until
from support.stack import generate_body

SIGNALS: Final = (
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGTTIN,
    signal.SIGTTOU,
    signal.SIGCHLD,
    signal.SIGHUP,
)


class Host:
    """A program with handlers of its own."""

    def __init__(self) -> None:
        self.got: list[signal.Signals] = []

    def handler(self, number: int, frame: FrameType | None) -> None:
        # Of child processes, which are shards, there are some.
        if number != signal.SIGCHLD:
            self.got.append(signal.Signals(number))


@pytest.fixture
def host() -> Iterator[Host]:
    host = Host()
    before = {signum: signal.signal(signum, host.handler) for signum in SIGNALS}
    try:
        yield host
        assert [signum for signum in SIGNALS if signal.getsignal(signum) != host.handler] == []
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)


@pytest.fixture
def engine(runtime_dir: Path) -> Iterator[SimulatedEngine]:
    with SimulatedEngine(runtime_dir, step_seconds=0.005) as engine:
        yield engine


def made(engine: object, mode: Mode = Mode.PROCESS, **settings: Any) -> sglang_subgw.Gateway:
    return sglang_subgw.Gateway(engine, **({"shards": 1, "mode": mode, "port": 0, "log_level": "warning"} | settings))


def handled(engine: object, mode: Mode = Mode.PROCESS, **settings: Any) -> sglang_subgw.Gateway:
    return made(engine, mode, handle_signals=True, **settings)


def test_public_bugs_18_none_is_touched_unless_asked(engine: SimulatedEngine, host: Host, mode: Mode):
    with made(engine, mode):
        assert {signal.getsignal(signum) for signum in SIGNALS} == {host.handler}

    async def run() -> None:
        async with made(engine, mode):
            assert {signal.getsignal(signum) for signum in SIGNALS} == {host.handler}

    asyncio.run(run())


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_the_first_drains(engine: SimulatedEngine, host: Host, mode: Mode, signum: signal.Signals):
    with handled(engine, mode) as gateway:
        sock = raw_request(gateway.address, "/generate", generate_body("abc", 60))
        engine.wait_for(lambda: engine.running() == 1)
        signal.raise_signal(signum)
        assert b"200 OK" in read_until(sock, b"\r\n\r\n")
        sock.close()
        assert gateway.wait(10)
        assert not gateway.failure
    assert host.got == []


def test_the_second_does_not_wait(engine: SimulatedEngine, host: Host):
    with handled(engine) as gateway:
        sock = raw_request(gateway.address, "/generate", generate_body("abc", 4000, ignore_eos=True))
        engine.wait_for(lambda: engine.running() == 1)
        signal.raise_signal(signal.SIGTERM)
        assert not gateway.wait(0.2)
        signal.raise_signal(signal.SIGTERM)
        assert gateway.wait(10)
        assert b" 503 " in read_until(sock, b"\r\n")
        sock.close()


def test_shards_restart_come_and_go_by_signals(engine: SimulatedEngine, host: Host, caplog: pytest.LogCaptureFixture):
    with handled(engine) as gateway:

        def until(shards: list[tuple[str, int]]) -> None:
            for _ in range(2000):
                if [(shard["state"], shard["generation"]) for shard in gateway.shards] == shards:
                    return
                gateway.wait(0.01)
            raise AssertionError(gateway.shards)

        signal.raise_signal(signal.SIGUSR1)
        until([("ready", 2)])
        signal.raise_signal(signal.SIGTTIN)
        until([("ready", 2), ("ready", 1)])
        signal.raise_signal(signal.SIGTTOU)
        until([("ready", 2)])
        signal.raise_signal(signal.SIGTTOU)
        assert "The number of shards stays" in caplog.text
    assert host.got == []


def test_once_it_has_ended_they_are_the_program_s_again_even_before_it_is_stopped(engine: SimulatedEngine, host: Host):
    with handled(engine) as gateway:
        engine.crash("it ran out of memory")
        assert gateway.wait(10)
        for signum in (signal.SIGTERM, signal.SIGUSR1, signal.SIGTERM):
            signal.raise_signal(signum)
        assert host.got == [signal.SIGTERM, signal.SIGUSR1, signal.SIGTERM]
        with pytest.raises(EngineDied):
            gateway.raise_failure()


def test_a_crash_signal_that_is_none_of_its_engine_s_goes_to_the_program(engine: SimulatedEngine, host: Host):
    with handled(engine):
        signal.raise_signal(signal.SIGQUIT)
        assert host.got == [signal.SIGQUIT]


def test_during_the_start_one_ends_it(engine: SimulatedEngine, host: Host):
    engine.set_faults(router_silent=True)
    timer = threading.Timer(0.3, signal.pthread_kill, (threading.main_thread().ident, signal.SIGTERM))
    timer.start()
    with pytest.raises(StartStopped, match="The start was stopped"):
        handled(engine).start()
    timer.join()
    engine.set_faults(router_silent=False)
    assert host.got == []


def test_an_event_loop_s_program_drains_by_them_too(engine: SimulatedEngine, host: Host):
    async def run() -> None:
        async with handled(engine) as gateway:
            asyncio.get_running_loop().call_later(0.05, signal.raise_signal, signal.SIGTERM)
            await gateway.async_wait()
            assert not gateway.failure

    asyncio.run(run())
    assert host.got == []


def test_one_that_is_stopped_in_another_thread_passes_them_on_until_the_main_one_takes_them_back(
    engine: SimulatedEngine, host: Host
):
    gateway = handled(engine)
    gateway.start()
    thread = threading.Thread(target=gateway.stop)
    thread.start()
    thread.join()
    signal.raise_signal(signal.SIGTERM)
    assert host.got == [signal.SIGTERM]
    gateway.stop()


def test_off_the_main_thread_they_can_not_be_had(engine: SimulatedEngine, host: Host):
    failures: list[BaseException] = []

    def run() -> None:
        gateway = handled(engine)
        try:
            gateway.start()
        except ConfigError as exc:
            failures.append(exc)
        with pytest.raises(ConfigError):
            gateway.ready(1)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert "handle_signals=True works in the main thread only" in str(failures[0])


def test_a_crash_in_a_wrapped_engine_is_told_to_its_watcher(
    engine: SimulatedEngine, host: Host, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(signals, "WrappedEngine", SimulatedEngine)
    monkeypatch.setattr(SimulatedEngine, "crashed", lambda self: self.crash("a crash"), raising=False)
    with handled(engine) as gateway:
        signal.raise_signal(signal.SIGQUIT)
        assert gateway.wait(10)
        assert "a crash" in gateway.failure
    assert host.got == []
