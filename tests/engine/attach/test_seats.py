"""Seats: one per gateway, the same names over again, and the requests of a killed gateway ended."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sglang_subgw.contract.rids import Rids
from sglang_subgw.engine.attach.fence import RouterFence
from sglang_subgw.engine.attach.seats import Seat, SeatSweeper, taken
from sglang_subgw.errors import ContractError
from sglang_subgw.simulated import SimulatedEngine
from support.worker import PlainWorker

KILLED, OTHER = "aaaaaaaaaaaa", "bbbbbbbbbbbb"


@pytest.fixture
def engine(runtime_dir: Path) -> Iterator[SimulatedEngine]:
    with SimulatedEngine(runtime_dir, step_seconds=0.01) as engine:
        yield engine
        assert engine.violations == []


@pytest.fixture
def running(engine: SimulatedEngine) -> Iterator[SimulatedEngine]:
    """Three requests each of two gateways."""
    with PlainWorker(engine.contract) as worker:
        for gateway in (KILLED, OTHER):
            for shard in range(3):
                worker.generate(Rids(gateway, shard, 1).next(), "abc", max_new_tokens=4000, ignore_eos=True)
        assert engine.wait_for(lambda: engine.running() == 6)
        yield engine
        worker.send("AbortReq", rid="", abort_all=True)
        assert engine.wait_idle()


def kill(seat: Seat) -> None:
    """What the kernel does for a process that is killed: the lock goes, the files stay."""
    os.close(seat._lock)
    seat._lock = -1


def test_each_gateway_has_a_seat_of_its_own_and_a_free_one_is_taken_again(engine: SimulatedEngine):
    one, two = Seat.claim(engine.contract, KILLED), Seat.claim(engine.contract, OTHER)
    assert one.path != two.path
    assert one.path.stat().st_mode & 0o777 == 0o700
    assert taken(engine.contract) == 2
    one.release()
    one.release()
    again = Seat.claim(engine.contract, KILLED)
    assert again.path == one.path
    again.release()
    two.release()
    assert taken(engine.contract) == 0
    assert engine.wait_idle(0.2)
    assert engine.aborted == []


def test_the_next_gateway_ends_what_a_killed_one_left_running_and_nothing_else(running: SimulatedEngine):
    killed = Seat.claim(running.contract, KILLED)
    (killed.path / "shard-0.ipc").touch()
    kill(killed)
    assert taken(running.contract) == 0
    seat = Seat.claim(running.contract, "cccccccccccc")
    assert seat.path == killed.path
    assert [path.name for path in seat.path.iterdir()] == ["gateway"]
    assert running.wait_for(lambda: running.running() == 3)
    assert {rid[:12] for rid in running.aborted} == {KILLED}
    seat.release()


def test_the_sweeper_ends_what_a_killed_gateway_left_running(running: SimulatedEngine):
    killed, other = Seat.claim(running.contract, KILLED), Seat.claim(running.contract, OTHER)
    sweeper = SeatSweeper(running.contract)
    sweeper.start()
    try:
        time.sleep(1.2)
        assert running.running() == 6, "the holders live"
        kill(killed)
        assert running.wait_for(lambda: running.running() == 3)
        assert {rid[:12] for rid in running.aborted} == {KILLED}
    finally:
        sweeper.stop()
    assert list(killed.path.iterdir()) == []
    other.release()


def test_two_sweepers_and_an_engine_that_went_are_no_trouble(engine: SimulatedEngine, caplog: pytest.LogCaptureFixture):
    sweepers = [SeatSweeper(engine.contract) for _ in range(2)]
    seat = Seat.claim(engine.contract, KILLED)
    kill(seat)
    for sweeper in sweepers:
        sweeper.start()
    deadline = time.monotonic() + 5
    while list(seat.path.iterdir()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    seat.path.rmdir()
    time.sleep(0.6)
    for sweeper in sweepers:
        sweeper.stop()
    assert [record.message for record in caplog.records] == [
        f"Gateway {KILLED} was killed: aborting what it left running."
    ]


@pytest.mark.parametrize("damaged", ["", "aaaa", "AAAAAAAAAAAA", "aaaaaaaaaaaaa"])
def test_a_damaged_note_of_the_holder_aborts_nothing(running: SimulatedEngine, damaged: str):
    killed = Seat.claim(running.contract, KILLED)
    (killed.path / "gateway").write_text(damaged)
    kill(killed)
    Seat.claim(running.contract, "cccccccccccc").release()
    time.sleep(0.1)
    assert running.running() == 6


def test_the_fence_refuses_a_prefix_that_would_reach_others(engine: SimulatedEngine):
    fence = RouterFence(engine.contract)
    for prefix in ("", "aaaa"):
        with pytest.raises(ValueError, match="12 hex digits"):
            fence.abort_gateway(prefix)
    fence.close()


def test_an_engine_s_directory_that_is_gone_is_said(engine: SimulatedEngine, tmp_path: Path):
    wire = dataclasses.replace(engine.contract.wire, runtime_dir=str(tmp_path / "gone"))
    with pytest.raises(ContractError, match=r"gone is gone: No such file"):
        Seat.claim(dataclasses.replace(engine.contract, wire=wire), KILLED)
