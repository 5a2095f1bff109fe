"""Errors inside a shard: what they may end, what they must not, and that no shard stays that has lost a part."""

from __future__ import annotations

import socket
from collections.abc import Callable

import pytest

from sglang_subgw.contract import EngineContract
from sglang_subgw.engine.attach.seats import Seat
from sglang_subgw.errors import ShardFailed, ShardStartError
from support.client import request_bytes
from support.faults import APP, streams_on_each, until
from support.stack import Stack

STEP = {"step_seconds": 0.01, "config": {"app": APP}}


@pytest.mark.parametrize("path", ["/fail", "/leave"], ids=["an exception", "sys.exit"])
def test_an_application_that_raises_in_a_request_costs_that_request_a_500_and_nothing_else(
    make_stack: Callable[..., Stack], path: str
):
    stack = make_stack(**STEP)
    with streams_on_each(stack) as faulty, stack.client_per_shard() as clients:
        assert [one.get(path).status_code for one in clients] == [500, 500]
        for stream in faulty.streams:
            stream.goes_on()
        assert [faulty.state(shard) for shard in (0, 1)] == [("ready", 1)] * 2
    stack.wait_idle()
    stack.check()


def test_a_request_that_never_ends_does_not_keep_its_shard_from_starting_again(make_stack: Callable[..., Stack]):
    stack = make_stack(config={"app": APP, "drain_timeout_seconds": 0.3})
    with socket.create_connection(stack.address, timeout=20) as sock:
        sock.sendall(request_bytes("/hang", b"", method="GET"))
        until(lambda: sum(shard["http_requests"] for shard in stack.gateway.shards) == 1)
        stack.gateway.restart_shards()
        until(lambda: [(s["state"], s["generation"]) for s in stack.gateway.shards] == [("ready", 2)] * 2, 20)
        assert sock.recv(64).startswith(b"HTTP/1.1 500")
    assert stack.generate("abc", 3)["text"] == "abc"
    stack.check()


@pytest.mark.parametrize("fault", ["callback", "task"])
def test_an_exception_that_nobody_waits_for_is_logged_with_the_shard_and_harms_nothing(
    make_stack: Callable[..., Stack], fault: str, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
):
    stack = make_stack(**STEP)
    with streams_on_each(stack) as faulty:
        faulty.inject(1, fault)
        logged = ""

        def is_logged() -> bool:
            nonlocal logged
            logged += capfd.readouterr().err
            return f"InjectedError: in a {fault}" in logged + caplog.text

        until(is_logged)
        assert "Shard 1: " in logged + caplog.text
        for stream in faulty.streams:
            stream.goes_on()
        assert [faulty.state(shard) for shard in (0, 1)] == [("ready", 1)] * 2
    stack.wait_idle()
    stack.check()


VITAL = {
    "receive": "its connection to the engine failed: InjectedError: on a frame",
    "closed_socket": "was closed behind its back: Socket operation on non-socket",
    "heartbeat": "its heartbeat failed: CancelledError: it was cancelled",
    "server": "its server failed: CancelledError: it was cancelled",
    "exit_task": "SystemExit: 3",
}


@pytest.mark.parametrize("fault", VITAL)
def test_a_shard_that_loses_a_vital_part_ends_with_503_starts_again_within_3_s_and_harms_no_other(
    make_stack: Callable[..., Stack], fault: str, caplog: pytest.LogCaptureFixture
):
    stack = make_stack(**STEP)
    with streams_on_each(stack) as faulty:
        faulty.inject(1, fault, 3)
        rest = faulty.streams[1].rest()
        assert b'"code":503' in rest
        assert VITAL[fault].encode() in rest
        assert faulty.serves_again(1) < 3
        assert stack.engine.wait_for(lambda: stack.engine.running() == 1, 5), "it was not aborted in the engine"
        faulty.streams[0].goes_on()
        assert "Shard 1 ended and is started again: " in caplog.text
        assert VITAL[fault] in caplog.text
        assert faulty.state(0) == ("ready", 1)
    stack.wait_idle()
    stack.check()


def test_a_shard_whose_every_task_was_cancelled_is_not_taken_for_one_that_was_stopped(
    make_stack: Callable[..., Stack], caplog: pytest.LogCaptureFixture
):
    stack = make_stack(**STEP)
    with streams_on_each(stack) as faulty:
        faulty.inject(0, "every_task")
        assert faulty.serves_again(0) < 3
        faulty.streams[1].goes_on()
        assert "Shard 0 ended and is started again: its " in caplog.text
        assert stack.engine.wait_for(lambda: stack.engine.running() == 1, 5)
    stack.wait_idle()
    stack.check()


def test_a_message_that_a_shard_can_not_read_ends_it_instead_of_making_it_deaf(
    make_stack: Callable[..., Stack], caplog: pytest.LogCaptureFixture
):
    stack = make_stack(**STEP)
    with streams_on_each(stack) as faulty:
        stack.gateway._supervisor.shards[1].channel.send("nonsense")
        assert b"its channel to the gateway failed: KeyError: 'nonsense'" in faulty.streams[1].rest()
        assert faulty.serves_again(1) < 3
        faulty.streams[0].goes_on()
    stack.wait_idle()
    stack.check()


def test_idle_connections_of_a_failed_shard_are_served_by_another(make_stack: Callable[..., Stack]):
    stack = make_stack(**STEP)
    with stack.client_per_shard() as clients:
        assert clients[1].get("/fault/heartbeat").status_code == 200
        until(lambda: stack.gateway.shards[1]["generation"] == 2)
        # Not retried: the connection itself must have lived on.
        assert clients[1].get("/ping").status_code == 200
    stack.check()


@pytest.mark.parametrize(
    ("app", "said"),
    [
        ("support.apps.plain:broken", "The application's own start-up failed"),
        ("support.apps.faulty:never_starts", "InjectedError: in the factory"),
    ],
)
def test_an_application_that_fails_at_its_start_fails_the_gateway_s_start_with_the_reason(
    make_stack: Callable[..., Stack], app: str, said: str
):
    with pytest.raises(ShardStartError, match=rf"Shard \d failed: .*{said}"):
        make_stack(config={"app": app})


def test_a_shard_that_can_not_start_fails_the_gateway_s_start_with_the_reason(
    make_stack: Callable[..., Stack], monkeypatch: pytest.MonkeyPatch
):
    claim = Seat.claim

    def occupied(contract: EngineContract, gateway_id: str) -> Seat:
        seat = claim(contract, gateway_id)
        for index in range(2):
            (seat.path / f"shard-{index}.ipc" / "in the way").mkdir(parents=True)
        return seat

    monkeypatch.setattr(Seat, "claim", occupied)
    with pytest.raises(
        ShardStartError, match=r"Shard \d failed: The shard's sockets can't be opened \(ipc://.*shard-\d"
    ):
        make_stack()


def test_a_shard_that_can_not_start_again_is_tried_with_back_off_and_then_fails_the_gateway_with_the_reason(
    make_stack: Callable[..., Stack], caplog: pytest.LogCaptureFixture
):
    stack = make_stack(step_seconds=0.01, config={"app": "support.apps.faulty:starts_once"})
    with streams_on_each(stack) as faulty:
        faulty.inject(1, "heartbeat")
        faulty.streams[1].rest()
        until(lambda: faulty.state(1)[1] >= 4, 10, "the third try")
        # Meanwhile the other one serves, and takes all that comes.
        assert stack.generate("abc", 3)["text"] == "abc"
        faulty.streams[0].goes_on()
        rest = faulty.streams[0].rest()
        assert b"InjectedError: not a second time" in rest
        assert b'"code":503' in rest
    assert stack.gateway.wait(10)
    with pytest.raises(ShardFailed, match="Shard 1 failed: InjectedError: not a second time"):
        stack.gateway.raise_failure()
    # The first at once, then after 0.1, 0.5, 1 and 2 s.
    assert caplog.text.count("Shard 1 ended and is started again") == 5
