"""Clients that go away: each open sub-request is aborted in the engine once, within a second."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable

import pytest

from support.client import raw_request, read_until, reset
from support.stack import Stack, generate_body

ENDLESS = 4000


def fin(sock: socket.socket) -> None:
    sock.close()


LEAVE = {"FIN": fin, "RST": reset}
BODIES = {
    "generate": ("/generate", generate_body("abc", ENDLESS, stream=True)),
    "generate plain": ("/generate", generate_body("abc", ENDLESS)),
    "chat": (
        "/v1/chat/completions",
        {
            "model": "simulated-model",
            "messages": [{"role": "user", "content": "abc"}],
            "max_tokens": ENDLESS,
            "stream": True,
        },
    ),
    "completion": (
        "/v1/completions",
        {"model": "simulated-model", "prompt": "abc", "max_tokens": ENDLESS, "stream": True},
    ),
}


def wait_running(stack: Stack, count: int) -> None:
    assert stack.engine.wait_for(lambda: stack.engine.running() == count), stack.engine.running()


def assert_aborted_within_a_second(stack: Stack, left_at: float, count: int) -> None:
    stack.wait_idle(5)
    assert time.monotonic() - left_at < 1.0
    assert len(stack.engine.aborted) == len(set(stack.engine.aborted)) == count
    aborts = [m.rid for m in stack.engine.received if m.__struct_name__ == "AbortReq"]
    assert len(aborts) == len(set(aborts)), "an abort was sent twice"
    stack.check()


@pytest.mark.parametrize("leave", LEAVE.values(), ids=LEAVE.keys())
def test_50_clients_that_leave_mid_stream(make_stack: Callable[..., Stack], leave):
    stack = make_stack(shards=4, step_seconds=0.005)
    socks = [raw_request(stack.address, "/generate", generate_body(f"<{i}>", ENDLESS, stream=True)) for i in range(50)]
    for sock in socks:
        read_until(sock, b"\n\n")
    wait_running(stack, 50)
    left_at = time.monotonic()
    for sock in socks:
        leave(sock)
    assert_aborted_within_a_second(stack, left_at, 50)


@pytest.mark.parametrize("leave", LEAVE.values(), ids=LEAVE.keys())
@pytest.mark.parametrize(("path", "body"), BODIES.values(), ids=BODIES.keys())
def test_a_client_that_leaves_before_the_first_token(make_stack: Callable[..., Stack], path, body, leave):
    stack = make_stack()
    stack.engine.set_faults(stall=True)
    sock = raw_request(stack.address, path, body)
    wait_running(stack, 1)
    left_at = time.monotonic()
    leave(sock)
    assert_aborted_within_a_second(stack, left_at, 1)


@pytest.mark.parametrize(("path", "body"), BODIES.values(), ids=BODIES.keys())
def test_a_client_that_leaves_after_the_first_token(make_stack: Callable[..., Stack], path, body):
    stack = make_stack(step_seconds=0.005)
    sock = raw_request(stack.address, path, body)
    if body.get("stream"):
        read_until(sock, b"\n\n")
    assert stack.engine.wait_for(lambda: stack.engine.running() == 1 and stack.engine.steps > 20)
    left_at = time.monotonic()
    reset(sock)
    assert_aborted_within_a_second(stack, left_at, 1)


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "plain"])
def test_every_sub_request_is_aborted(make_stack: Callable[..., Stack], stream):
    stack = make_stack(step_seconds=0.005)
    sock = raw_request(stack.address, "/generate", generate_body(["abc", "xyz"], ENDLESS, n=3, stream=stream))
    wait_running(stack, 6)
    left_at = time.monotonic()
    reset(sock)
    assert_aborted_within_a_second(stack, left_at, 6)


def test_leaving_while_queued_in_the_engine(make_stack: Callable[..., Stack]):
    stack = make_stack(max_running=1, step_seconds=0.005)
    socks = [raw_request(stack.address, "/generate", generate_body("abc", ENDLESS)) for _ in range(5)]
    wait_running(stack, 5)
    left_at = time.monotonic()
    for sock in socks:
        sock.close()
    assert_aborted_within_a_second(stack, left_at, 5)


def test_others_go_on(make_stack: Callable[..., Stack]):
    stack = make_stack(step_seconds=0.005)
    stays = raw_request(stack.address, "/generate", generate_body("stay", 100, stream=True))
    leaves = [raw_request(stack.address, "/generate", generate_body("go", ENDLESS, stream=True)) for _ in range(4)]
    for sock in leaves:
        read_until(sock, b"\n\n")
        sock.close()
    assert b'"length"' in read_until(stays, b"[DONE]")
    stays.close()
    stack.wait_idle()
    assert len(stack.engine.aborted) == 4
    stack.check()
