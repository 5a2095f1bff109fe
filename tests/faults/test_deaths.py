"""Processes that end without a word: a shard's, the gateway's own, the engine's."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sglang_subgw.config import Mode
from sglang_subgw.contract.segment import NAME_PREFIX
from sglang_subgw.engine.attach.published import PublishedEngine
from sglang_subgw.errors import ShardFailed
from sglang_subgw.gateway import handle
from sglang_subgw.simulated import SimulatedEngine
from sglang_subgw.system.channel import Channel
from support.attached import CommandProcess, attached
from support.client import client, raw_request, read_until
from support.faults import APP, streams_on_each, until
from support.programs import IMPORTABLE
from support.stack import Stack, generate_body

LONG = generate_body("abc", 4000, stream=True, ignore_eos=True)
only_process = pytest.mark.parametrize("mode", [Mode.PROCESS], ids=str)


@only_process
def test_a_process_shard_that_calls_os_exit_starts_again_and_its_exit_status_is_in_the_reason(
    make_stack: Callable[..., Stack], mode: Mode, caplog: pytest.LogCaptureFixture
):
    stack = make_stack(step_seconds=0.01, config={"app": APP})
    with streams_on_each(stack) as faulty:
        faulty.inject(1, "os_exit", 7)
        assert b"[DONE]" not in faulty.streams[1].broken()
        assert faulty.serves_again(1) < 3
        assert "Shard 1 ended and is started again: exit status 7" in caplog.text
        assert stack.engine.wait_for(lambda: stack.engine.running() == 1, 5), "it was not aborted in the engine"
        faulty.streams[0].goes_on()
    stack.wait_idle()
    stack.check()


@only_process
def test_a_process_shard_that_leaves_with_status_0_was_not_told_to_and_starts_again(
    make_stack: Callable[..., Stack], mode: Mode, caplog: pytest.LogCaptureFixture
):
    stack = make_stack(step_seconds=0.01, config={"app": APP})
    with streams_on_each(stack) as faulty:
        faulty.inject(0, "os_exit", 0)
        assert faulty.serves_again(0) < 3
        assert "Shard 0 ended and is started again: it ended without a word" in caplog.text
        faulty.streams[1].goes_on()
    stack.wait_idle()
    stack.check()


@only_process
def test_a_process_shard_that_keeps_exiting_fails_the_gateway_with_the_exit_status(
    make_stack: Callable[..., Stack], mode: Mode
):
    stack = make_stack(shards=1, config={"app": APP})

    def exits_or_has_ended() -> bool:
        if stack.gateway.shards[0]["state"] == "ready":
            with client(stack.address) as one:
                one.get("/fault/os_exit", params={"n": 9})
            generation = stack.gateway.shards[0]["generation"]
            until(lambda: stack.gateway.shards[0]["generation"] > generation or stack.gateway.wait(0))
        return stack.gateway.wait(0.01)

    until(exits_or_has_ended, 30)
    with pytest.raises(ShardFailed, match="Shard 0 failed: exit status 9"):
        stack.gateway.raise_failure()


@only_process
def test_a_process_shard_that_does_not_come_back_in_time_is_killed_and_tried_again(
    make_stack: Callable[..., Stack], mode: Mode, caplog: pytest.LogCaptureFixture
):
    config = {"app": "support.apps.faulty:hangs_once", "start_timeout_seconds": 4.0}
    stack = make_stack(step_seconds=0.01, config=config)
    with streams_on_each(stack) as faulty:
        faulty.inject(1, "heartbeat")
        faulty.serves_again(1, generation=3)
        assert "Shard 1 ended and is started again: it was not ready within 4 s" in caplog.text
        faulty.streams[0].goes_on()
    stack.wait_idle()
    stack.check()


def test_a_failed_shard_that_does_not_end_is_killed_where_that_can_be_done_and_else_ends_the_gateway(
    make_stack: Callable[..., Stack],
    mode: Mode,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
):
    monkeypatch.setattr(handle, "_AFTER_FAILURE_SECONDS", 1.5)
    stack = make_stack(step_seconds=0.01, config={"app": APP})
    with streams_on_each(stack) as faulty:
        faulty.inject(1, "busy_thread", 60 if mode is Mode.PROCESS else 5)
        assert b"its heartbeat failed" in faulty.streams[1].rest()
        if mode is Mode.PROCESS:
            faulty.serves_again(1)
            assert "Shard 1 ended and is started again: its heartbeat failed" in caplog.text
            faulty.streams[0].goes_on()
            return
        assert b'"code":503' in faulty.streams[0].rest()
    assert stack.gateway.wait(10)
    with pytest.raises(ShardFailed, match="Shard 1 does not end, and its mode can't end it by force"):
        stack.gateway.raise_failure()


def test_a_shard_that_has_no_descriptor_left_to_start_with_is_tried_again(
    make_stack: Callable[..., Stack], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    stack = make_stack(step_seconds=0.01, config={"app": APP})
    refusals = [0]
    pair = Channel.pair

    def refuse_twice() -> tuple[Channel, Channel]:
        refusals[0] += 1
        if refusals[0] <= 2:
            raise OSError(24, os.strerror(24))
        return pair()

    with streams_on_each(stack) as faulty:
        monkeypatch.setattr(Channel, "pair", refuse_twice)
        faulty.inject(1, "heartbeat")
        assert faulty.serves_again(1, generation=4) < 5
        assert refusals[0] == 3
        assert "Shard 1 ended and is started again: OSError: [Errno 24] Too many open files" in caplog.text
        faulty.streams[0].goes_on()
    stack.wait_idle()
    stack.check()


@pytest.fixture
def engine(runtime_dir: Path) -> Iterator[SimulatedEngine]:
    with SimulatedEngine(runtime_dir, step_seconds=0.01) as engine:
        yield engine
        assert engine.violations == []


@pytest.fixture
def published(engine: SimulatedEngine) -> Iterator[PublishedEngine]:
    with PublishedEngine(engine) as published:
        yield published


def started(engine: PublishedEngine, mode: Mode) -> CommandProcess:
    return attached(engine.name, "--app", APP, mode=mode, environment=IMPORTABLE)


def of_gateway(pid: int) -> list[int]:
    """The shards of a gateway that are processes."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if b"sglang_subgw.modes.child" in words and f'"leader_pid": {pid}'.encode() in b" ".join(words):
            found.append(int(path.parent.name))
    return found


@pytest.mark.parametrize("fault", ["", "spin"], ids=["serving", "a shard spins"])
def test_a_killed_gateway_s_shards_are_gone_within_5_s_and_the_next_one_removes_all_it_left(
    mode: Mode, fault: str, engine: SimulatedEngine, published: PublishedEngine, runtime_dir: Path
):
    before = {path for path in runtime_dir.rglob("*") if not path.is_dir()}
    with started(published, mode) as gateway:
        stream = raw_request(gateway.address, "/generate", LONG)
        read_until(stream, b"\n\n")
        shards = of_gateway(gateway.pid)
        assert len(shards) == (2 if mode is Mode.PROCESS else 0)
        if fault:
            with client(gateway.address) as one:
                assert one.get(f"/fault/{fault}").status_code == 200
        killed_at = time.monotonic()
        gateway.send(signal.SIGKILL)
        until(lambda: not of_gateway(gateway.pid), 5, "the shards' end")
        assert gateway.wait() == -signal.SIGKILL
        assert engine.wait_for(lambda: engine.running() == 0, 5), "what it left running was not aborted"
        assert time.monotonic() - killed_at < 6
        stream.close()
    with started(published, mode) as later:
        with client(later.address) as one:
            assert one.post("/generate", json=generate_body("abc", 3)).json()["text"] == "abc"
        assert not list(Path("/dev/shm").glob(f"{NAME_PREFIX}{gateway.pid}_*"))
        assert [path.name for path in runtime_dir.glob("g*")] == ["g0"], "it did not take the killed one's seat"
        later.send(signal.SIGTERM)
        assert later.wait() == 0, later.log
    assert {path for path in runtime_dir.rglob("*") if not path.is_dir()} == before
