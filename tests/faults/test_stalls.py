"""A shard whose loop stands still: reported, avoided, killed where that can be done, left alone where it can't."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from sglang_subgw.config import Mode
from sglang_subgw.contract import Word
from sglang_subgw.simulated import SimulatedEngineProcess
from support.attached import CommandProcess, attached
from support.client import SHARD_HEADER, client, raw_request, read_until
from support.faults import APP, streams_on_each, until
from support.modes import needs
from support.programs import IMPORTABLE
from support.stack import Stack, generate_body

BLOCKS = ["spin", "sleep"]
SMALL = {"app": APP, "stall_seconds": 0.8}


@pytest.mark.parametrize("fault", BLOCKS)
def test_a_block_that_ends_is_reported_and_avoided_and_the_shard_goes_on_with_its_streams(
    make_stack: Callable[..., Stack], fault: str, caplog: pytest.LogCaptureFixture
):
    stack = make_stack(step_seconds=0.01, config=SMALL)
    with streams_on_each(stack) as faulty:
        faulty.inject(1, fault, 3.5)
        assert until(lambda: "Shard 1 is stalled: its loop has not turned for" in caplog.text) < 3
        # More than the other's load would send there: it is avoided, not just less loaded.
        for _ in range(4):
            answer = stack.post("/generate", generate_body("abc", 3))
            assert answer.headers[SHARD_HEADER] == "0"
        assert "Shard 1 is no longer stalled" not in caplog.text, "the block ended too early for this test"
        faulty.streams[0].goes_on()
        until(lambda: "Shard 1 is no longer stalled" in caplog.text)
        for stream in faulty.streams:
            stream.goes_on()
        assert [faulty.state(shard) for shard in (0, 1)] == [("ready", 1)] * 2
        answers = [stack.post("/generate", generate_body("abc", 3)).headers[SHARD_HEADER] for _ in range(4)]
        assert "1" in answers
    stack.wait_idle()
    stack.check()


@pytest.mark.parametrize("fault", ["receive_blocking"])
@pytest.mark.parametrize("mode", [Mode.PROCESS], ids=str)
def test_a_block_that_does_not_end_is_killed_in_mode_process_and_the_shard_serves_again(
    make_stack: Callable[..., Stack], mode: Mode, fault: str, caplog: pytest.LogCaptureFixture
):
    stack = make_stack(step_seconds=0.01, config={**SMALL, "stall_kill_seconds": 1.5})
    with streams_on_each(stack) as faulty:
        pid = faulty.inject(1, fault, 1000)["pid"]
        until(lambda: "Shard 1 ended and is started again: its loop did not turn for 1." in caplog.text, 5)
        assert faulty.serves_again(1) < 3
        assert b"[DONE]" not in faulty.streams[1].broken()
        assert not Path(f"/proc/{pid}").exists()
        assert stack.engine.wait_for(lambda: stack.engine.running() == 1, 5), "it was not aborted in the engine"
        faulty.streams[0].goes_on()
        assert "Shard 1 was killed" in caplog.text
    stack.wait_idle()
    stack.check()


def test_what_waits_for_a_blocked_shard_is_served_when_it_goes_on(make_stack: Callable[..., Stack]):
    stack = make_stack(shards=1, config={**SMALL, "stall_seconds": 10.0})
    slot = stack.gateway.segment.slots[0]
    with stack.client() as one:
        one.get("/fault/sleep", params={"n": 1.0})
    waiting = [raw_request(stack.address, "/generate", generate_body("abc", 3)) for _ in range(8)]
    for sock in waiting:
        assert b'"text":"abc"' in read_until(sock, b"}}")
        sock.close()
    stack.wait_for(lambda: slot.get(Word.CONNECTIONS) == 0)
    assert slot.get(Word.ACCEPTED) == slot.get(Word.CONNECTIONS_SEEN)
    stack.check()


def blocked(gateway: CommandProcess, fault: str) -> int:
    """Block a shard of a gateway for good; its index."""
    with client(gateway.address) as one:
        shard: int = one.get(f"/fault/{fault}", params={"n": 0 if fault == "spin" else 1000}).json()["shard"]
    return shard


@pytest.mark.parametrize("fault", ["spin", "sleep"])
@pytest.mark.parametrize("mode", [Mode.THREAD, pytest.param(Mode.SUBINTERP, marks=needs(Mode.SUBINTERP))], ids=str)
def test_a_shard_that_never_ends_does_not_hold_up_the_stop_whose_exit_status_is_1_and_which_names_it(
    runtime_dir: Path, mode: Mode, fault: str
):
    with (
        SimulatedEngineProcess(runtime_dir, "--step-seconds", "0.01") as engine,
        attached(engine.pid, "--app", APP, "--drain-timeout", "1", mode=mode, environment=IMPORTABLE) as gateway,
    ):
        shard = blocked(gateway, fault)
        stopped_at = time.monotonic()
        gateway.send(signal.SIGTERM)
        assert gateway.wait(20) == 1, gateway.log
        assert time.monotonic() - stopped_at < 15
        assert f"Shards [{shard}] did not end; leaving them." in gateway.log
        assert [path for path in (runtime_dir / "g0").rglob("*") if not path.is_dir()] == []
        assert not list(Path("/dev/shm").glob(f"sglang_subgw_{gateway.pid}_*"))


@pytest.mark.parametrize("mode", [Mode.PROCESS], ids=str)
def test_a_process_shard_that_never_ends_is_killed_by_the_stop_which_is_a_clean_one(runtime_dir: Path, mode: Mode):
    with (
        SimulatedEngineProcess(runtime_dir) as engine,
        attached(engine.pid, "--app", APP, "--drain-timeout", "1", mode=mode, environment=IMPORTABLE) as gateway,
    ):
        blocked(gateway, "spin")
        gateway.send(signal.SIGTERM)
        assert gateway.wait(20) == 0, gateway.log
