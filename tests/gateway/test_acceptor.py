"""Who accepts: the gateway for all shards, or each shard for itself (SO_REUSEPORT)."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable

import pytest

from sglang_subgw.config import Accept, Mode
from sglang_subgw.errors import ConfigError
from sglang_subgw.gateway import listener
from support.client import SHARD_HEADER, raw_request, read_until
from support.stack import Stack, generate_body

REUSEPORT = {"accept": Accept.REUSEPORT}


def test_each_shard_accepts_from_a_socket_of_its_own(make_stack: Callable[..., Stack]):
    stack = make_stack(shards=2, config=REUSEPORT)
    shards = set()
    for _ in range(40):
        with stack.client() as client:
            response = client.get("/ping")
            assert response.status_code == 200
            shards.add(response.headers[SHARD_HEADER])
    assert shards == {"0", "1"}
    counters = stack.gateway.shards
    assert sum(shard["accepted"] for shard in counters) == 0, "the gateway accepted none"
    assert stack.wait_for(lambda: sum(shard["connections"] for shard in stack.gateway.shards) == 0)


def test_a_drain_refuses_new_connections_and_finishes_streams(make_stack: Callable[..., Stack]):
    stack = make_stack(shards=2, config=REUSEPORT, step_seconds=0.01)
    socks = [raw_request(stack.address, "/generate", generate_body("abc", 60, stream=True)) for _ in range(8)]
    for sock in socks:
        read_until(sock, b"\n\n")
    address = stack.address
    stack.gateway.begin_drain(20)
    assert all(b"[DONE]" in read_until(sock, b"[DONE]") for sock in socks)
    for sock in socks:
        sock.close()
    assert stack.gateway.wait(10)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address, timeout=5)


@pytest.mark.parametrize("mode", [Mode.PROCESS], ids=str)
def test_while_a_shard_is_dead_the_gateway_accepts_for_it(make_stack: Callable[..., Stack], mode):
    stack = make_stack(shards=2, config=REUSEPORT)
    for _ in range(2):
        victim = stack.gateway.shards[0]
        os.kill(victim["pid"], signal.SIGKILL)
        assert stack.wait_for(lambda pid=victim["pid"]: stack.gateway.shards[0]["state"] != "ready", 5)
        for _ in range(10):
            with stack.client() as client:
                assert client.get("/ping").status_code == 200
        assert stack.wait_for(lambda: stack.gateway.shards[0]["state"] == "ready", 10)
    stack.check()


def test_a_taken_port_is_named_although_it_could_be_shared():
    (held,) = listener.bind("127.0.0.1", 0, shared=True)
    sibling = listener.sibling(held)
    try:
        sibling.listen(1)
        port = held.getsockname()[1]
        with pytest.raises(ConfigError, match=f"port {port} can't be listened on: Address already in use"):
            listener.bind("127.0.0.1", port, shared=True)
    finally:
        listener.close([held, sibling])


def test_unix_sockets_can_not_be_shared_like_that(tmp_path):
    with pytest.raises(ConfigError, match=r"--accept reuseport is for TCP, and --host is unix:"):
        listener.bind(f"unix:{tmp_path}/s", 0, shared=True)


def test_unix_sockets_serve_several_shards(make_stack: Callable[..., Stack], tmp_path):
    path = tmp_path / "s"
    stale = socket.socket(socket.AF_UNIX)
    stale.bind(str(path))
    stale.close()
    stack = make_stack(shards=2, config={"host": f"unix:{path}"})
    socks = []
    for _ in range(4):
        sock = socket.socket(socket.AF_UNIX)
        sock.settimeout(10)
        sock.connect(str(path))
        socks.append(sock)
    # A connection whose request has ended weighs less: the requests come when all connections are placed.
    assert stack.wait_for(lambda: sum(shard["connections"] for shard in stack.gateway.shards) == 4)
    shards = []
    for sock in socks:
        sock.sendall(b"GET /ping HTTP/1.1\r\nHost: test\r\n\r\n")
        head = read_until(sock, b"\r\n\r\n").decode().lower()
        shards.append(int(head.partition(f"{SHARD_HEADER}: ")[2].split()[0]))
    for sock in socks:
        sock.close()
    assert sorted(shards) == [0, 0, 1, 1]
    stack.gateway.drain(5)
    assert not path.exists()


def test_ipv6_and_a_name_with_several_addresses_serve(make_stack: Callable[..., Stack]):
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        pytest.skip("this machine has no IPv6")
    stack = make_stack(config={"host": "::1"})
    with socket.create_connection(stack.gateway.address, timeout=10) as sock:
        sock.sendall(b"GET /ping HTTP/1.1\r\nHost: test\r\n\r\n")
        assert b" 200 " in read_until(sock, b"\r\n\r\n")
    assert stack.gateway.urls[0].startswith("http://[::1]:")
