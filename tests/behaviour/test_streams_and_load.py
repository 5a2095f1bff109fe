"""Many streams at once, connections spread evenly, a drain under load."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable

import httpx
import pytest

from support.client import SHARD_HEADER, async_client, parse_events, raw_request, read_until
from support.stack import Stack, echoed, generate_body


async def one_stream(client: httpx.AsyncClient, prompt: str, tokens: int) -> str:
    """The text of one streamed answer, which must be whole."""
    body = generate_body(prompt, tokens, stream=True)
    async with client.stream("POST", "/generate", json=body) as response:
        assert response.status_code == 200
        return parse_events((await response.aread()).decode())[-1]["text"]


@pytest.mark.parametrize("grouped", [True, False], ids=["grouped", "single"])
def test_200_concurrent_streams_end_with_the_right_text(make_stack: Callable[..., Stack], grouped):
    stack = make_stack(shards=4, grouped=grouped, step_seconds=0.005)
    prompts = [f"<{i:03d}>" for i in range(200)]

    async def run() -> list[str]:
        async with async_client(stack.address) as client:
            return await asyncio.gather(*(one_stream(client, prompt, 40) for prompt in prompts))

    assert asyncio.run(run()) == [echoed(prompt, 40) for prompt in prompts]
    stack.wait_idle()
    stack.check()
    counters = stack.gateway.shards
    assert sum(shard["finished"] for shard in counters) >= 200
    assert all(shard["active"] == 0 for shard in counters)


def test_64_connections_are_16_on_each_of_4_shards(make_stack: Callable[..., Stack]):
    stack = make_stack(shards=4)
    socks = []
    try:
        shards = []
        for _ in range(64):
            sock = socket.create_connection(stack.address, timeout=10)
            socks.append(sock)
            sock.sendall(b"GET /ping HTTP/1.1\r\nHost: test\r\n\r\n")
            head = read_until(sock, b"\r\n\r\n").decode().lower()
            shards.append(int(head.partition(f"{SHARD_HEADER}: ")[2].split()[0]))
        assert [shards.count(shard) for shard in range(4)] == [16] * 4
    finally:
        for sock in socks:
            sock.close()


def test_64_connections_at_once_are_16_on_each_of_4_shards(make_stack: Callable[..., Stack]):
    stack = make_stack(shards=4)
    socks = [socket.create_connection(stack.address, timeout=10) for _ in range(64)]
    try:
        # A connection whose request has ended weighs less: the requests come when all connections are placed.
        assert stack.wait_for(lambda: sum(shard["connections"] for shard in stack.gateway.shards) == 64)
        for sock in socks:
            sock.sendall(b"GET /ping HTTP/1.1\r\nHost: test\r\n\r\n")
        shards = [int(read_until(s, b"\r\n\r\n").decode().lower().partition(f"{SHARD_HEADER}: ")[2][0]) for s in socks]
        assert [shards.count(shard) for shard in range(4)] == [16] * 4
    finally:
        for sock in socks:
            sock.close()


def test_drain_during_100_streams_finishes_all_of_them(make_stack: Callable[..., Stack]):
    stack = make_stack(shards=4, step_seconds=0.01)
    socks = [raw_request(stack.address, "/generate", generate_body(f"<{i:03d}>", 60, stream=True)) for i in range(100)]
    started = [read_until(sock, b"\n\n") for sock in socks]
    address = stack.address
    drained = threading.Thread(target=stack.gateway.drain, args=(20.0,))
    drained.start()
    try:
        for i, (sock, start) in enumerate(zip(socks, started, strict=True)):
            body = (start if b"[DONE]" in start else start + read_until(sock, b"[DONE]")).decode()
            assert f'"text":"{echoed(f"<{i:03d}>", 60)}"' in body.replace('": "', '":"')
    finally:
        for sock in socks:
            sock.close()
        drained.join(20)
    assert not drained.is_alive()
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(address, timeout=2)
    assert stack.gateway.failure == ""
    stack.check()


def test_drain_refuses_new_connections_at_once(make_stack: Callable[..., Stack]):
    stack = make_stack(step_seconds=0.02)
    sock = raw_request(stack.address, "/generate", generate_body("abc", 50, stream=True))
    read_until(sock, b"\n\n")
    stack.gateway.begin_drain(20.0)
    pause = threading.Event()
    refused = False
    for _ in range(100):
        try:
            socket.create_connection(sock.getpeername(), timeout=1).close()
        except OSError:
            refused = True
            break
        pause.wait(0.01)
    assert refused
    assert b"[DONE]" in read_until(sock, b"[DONE]")
    sock.close()
    assert stack.gateway.wait(10)


def test_a_grace_period_that_is_over_ends_requests_with_an_error(make_stack: Callable[..., Stack]):
    stack = make_stack(step_seconds=0.05)
    sock = raw_request(stack.address, "/generate", generate_body("abc", 4000, stream=True))
    read_until(sock, b"\n\n")
    stack.gateway.begin_drain(0.3)
    tail = b""
    while piece := sock.recv(65536):
        tail += piece
    sock.close()
    assert b"stopping" in tail
    assert b'"finish_reason": {' not in tail
    assert stack.gateway.wait(10)
    stack.wait_idle()


def test_stop_while_requests_run_leaves_the_engine_idle(make_stack: Callable[..., Stack]):
    stack = make_stack(step_seconds=0.01)
    socks = [raw_request(stack.address, "/generate", generate_body("abc", 4000, stream=True)) for _ in range(8)]
    for sock in socks:
        read_until(sock, b"\n\n")
    stack.gateway.stop()
    stack.wait_idle()
    for sock in socks:
        sock.close()
    stack.check()
