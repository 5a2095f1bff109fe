"""`attach` and `--engine-only` as commands: leaving and coming back, deaths on both sides, refusals."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sglang_subgw.config import Mode
from sglang_subgw.contract.segment import NAME_PREFIX
from sglang_subgw.engine.attach.published import PublishedEngine
from sglang_subgw.simulated import SimulatedEngine, SimulatedEngineProcess
from support.attached import CommandProcess, attached, simulated_owner
from support.client import client, raw_request, read_until
from support.modes import needs
from support.stack import generate_body

LONG = generate_body("abc", 4000, stream=True, ignore_eos=True)


@pytest.fixture
def engine(runtime_dir: Path) -> Iterator[SimulatedEngine]:
    """An engine of this process, published: what runs in it can be seen here."""
    with SimulatedEngine(runtime_dir, step_seconds=0.01) as engine:
        yield engine
        assert engine.violations == []


@pytest.fixture
def published(engine: SimulatedEngine) -> Iterator[PublishedEngine]:
    with PublishedEngine(engine) as published:
        yield published


@contextmanager
def engine_only() -> Iterator[CommandProcess]:
    """An engine without a gateway, up."""
    with simulated_owner("--engine-only") as owner:
        assert owner.banner
        yield owner


def generate(gateway: CommandProcess) -> str:
    with client(gateway.address) as one:
        answer = one.post("/generate", json=generate_body("abc", 3))
    assert answer.status_code == 200, answer.text
    text: str = answer.json()["text"]
    return text


def until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.01)


def segments_of(pid: int) -> list[str]:
    return [path.name for path in Path("/dev/shm").glob(f"{NAME_PREFIX}{pid}_*")]


def files_in(directory: Path) -> list[str]:
    return [path.name for path in directory.rglob("*") if not path.is_dir()]


def last_line(gateway: CommandProcess) -> str:
    return gateway.log.strip().splitlines()[-1]


def test_the_gateway_leaves_and_comes_back_and_the_engine_stays(
    mode: Mode, engine: SimulatedEngine, published: PublishedEngine, runtime_dir: Path
):
    before = set(files_in(runtime_dir))
    for _ in range(2):
        with attached(published.name, mode=mode) as gateway:
            assert generate(gateway) == "abc"
            gateway.send(signal.SIGTERM)
            assert gateway.wait() == 0, gateway.log
        assert segments_of(gateway.pid) == []
        assert set(files_in(runtime_dir)) == before
    assert engine.router_alive()
    # SGLang keeps the name of every socket for good: the second gateway came by the first one's.
    assert len(engine.registered) == 2
    rids = [request.rid for request in engine.requests()]
    assert len(set(rids)) == len(rids)


def test_two_gateways_on_one_engine_and_one_is_killed(
    mode: Mode, engine: SimulatedEngine, published: PublishedEngine, runtime_dir: Path
):
    with attached(published.name, mode=mode) as one, attached(published.name, mode=mode) as two:
        assert [generate(one), generate(two)] == ["abc", "abc"]
        streams = [raw_request(gateway.address, "/generate", LONG) for gateway in (one, two)]
        for stream in streams:
            read_until(stream, b"\n\n")
        assert engine.wait_for(lambda: engine.running() == 2)
        one.send(signal.SIGKILL)
        one.wait()
        assert engine.wait_for(lambda: engine.running() == 1, 5), "what the killed one left running was not aborted"
        until(lambda: segments_of(one.pid) == [])
        read_until(streams[1], b"\n\n")
        assert generate(two) == "abc"
        two.send(signal.SIGINT)
        two.send(signal.SIGINT)
        for stream in streams:
            stream.close()
        assert two.wait() == 0, two.log
    assert engine.wait_idle(5)
    assert len(engine.aborted) == 2


def test_a_killed_engine_ends_every_stream_and_the_gateway_with_the_reason(mode: Mode, runtime_dir: Path):
    with SimulatedEngineProcess(runtime_dir, "--step-seconds", "0.01") as engine:
        with attached(engine.pid, mode=mode) as gateway:
            streams = [raw_request(gateway.address, "/generate", LONG) for _ in range(4)]
            for stream in streams:
                read_until(stream, b"\n\n")
            killed_at = time.monotonic()
            engine.kill()
            for stream in streams:
                rest = read_until(stream, b"[DONE]")
                assert f"the process {engine.pid} that owns the engine ended".encode() in rest
                assert b"503" in rest
                stream.close()
            assert time.monotonic() - killed_at < 5
            assert gateway.wait() == 1
            assert last_line(gateway) == f"sglang_subgw: the process {engine.pid} that owns the engine ended"
        assert segments_of(gateway.pid) == []


def test_the_reason_of_a_failed_engine_is_passed_on(runtime_dir: Path):
    arguments = ("--step-seconds", "0.01", "--crash-after-steps", "60")
    with (
        SimulatedEngineProcess(runtime_dir, *arguments) as engine,
        attached(engine.segment, mode="process") as gateway,
    ):
        stream = raw_request(gateway.address, "/generate", LONG)
        assert b"simulated crash" in read_until(stream, b"[DONE]")
        stream.close()
        assert gateway.wait() == 1
        assert last_line(gateway) == "sglang_subgw: simulated crash"


@needs(Mode.SUBINTERP)
def test_a_stopped_engine_lets_its_gateways_drain():
    with engine_only() as owner:
        assert f"attach {owner.pid}" in owner.banner
        with attached(owner.pid, mode="subinterp") as gateway:
            stream = raw_request(gateway.address, "/generate", generate_body("abc", 200, stream=True, ignore_eos=True))
            read_until(stream, b"\n\n")
            owner.send(signal.SIGTERM)
            assert b'"length"' in read_until(stream, b"[DONE]")
            stream.close()
            assert gateway.wait() == 1
            assert last_line(gateway) == "sglang_subgw: The engine was stopped by the process that owns it."
        assert owner.wait() == 0, owner.log
    assert segments_of(owner.pid) == []


def test_a_second_signal_to_the_engine_does_not_wait():
    with engine_only() as owner, attached(owner.pid, mode="thread") as gateway:
        stream = raw_request(gateway.address, "/generate", LONG)
        read_until(stream, b"\n\n")
        owner.send(signal.SIGINT)
        until(lambda: "Waiting for attached gateways" in owner.log)
        owner.send(signal.SIGINT)
        assert owner.wait(5) == 0, owner.log
        assert b"503" in read_until(stream, b"[DONE]")
        stream.close()
        assert gateway.wait() == 1


def test_a_serving_gateway_s_engine_can_be_attached_to():
    with simulated_owner("--port", "0", "--shards", "1", "--mode", "process") as owner:
        assert generate(owner) == "abc"
        with attached(owner.pid, mode="process", shards=1) as gateway:
            assert [generate(gateway), generate(owner)] == ["abc", "abc"]
            with attached(gateway.pid, mode="process") as wrong:
                assert wrong.wait() == 1
                assert f"Process {gateway.pid} has no engine" in last_line(wrong)
            gateway.send(signal.SIGTERM)
            assert gateway.wait() == 0
        owner.send(signal.SIGTERM)
        assert owner.wait() == 0, owner.log


def test_what_a_killed_engine_left_is_removed_by_its_gateway():
    with engine_only() as owner, attached(owner.pid, mode="process", shards=1) as gateway:
        assert generate(gateway) == "abc"
        assert len(list(Path(tempfile.gettempdir()).glob(f"subgw-{owner.pid}-*"))) == 1
        owner.send(signal.SIGKILL)
        assert gateway.wait() == 1
        assert segments_of(owner.pid) == segments_of(gateway.pid) == []
        assert list(Path(tempfile.gettempdir()).glob(f"subgw-{owner.pid}-*")) == []
        with attached(owner.pid, mode="process") as late:
            assert late.wait() == 1
            assert f"'{owner.pid}' is neither the pid nor the segment" in last_line(late)


def test_what_can_be_attached_to_is_listed(published: PublishedEngine):
    with attached("nobody", mode="process") as gateway:
        assert gateway.wait() == 1
    assert f"{os.getpid()} ({published.name}), simulated-model" in gateway.log
