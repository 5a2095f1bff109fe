"""HTTP and SSE as the tests need them: plain answers, event streams, connections to a chosen shard, rude clients."""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import httpx

SHARD_HEADER: Final = "x-sglang-subgw-shard"
TIMEOUT: Final = httpx.Timeout(20.0)

type Address = tuple[str, int]


def client(address: Address, *, connections: int = 1) -> httpx.Client:
    """A client that keeps its connections, and so its shard."""
    limits = httpx.Limits(max_connections=connections, max_keepalive_connections=connections)
    return httpx.Client(base_url=_url(address), timeout=TIMEOUT, limits=limits, trust_env=False)


def async_client(address: Address) -> httpx.AsyncClient:
    """A client with a connection for every request that is underway."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    return httpx.AsyncClient(base_url=_url(address), timeout=TIMEOUT, limits=limits, trust_env=False)


@contextmanager
def client_per_shard(address: Address, shards: int) -> Iterator[list[httpx.Client]]:
    """One client on each shard, in shard order."""
    found: dict[int, httpx.Client] = {}
    opened = []
    try:
        while len(found) < shards:
            assert len(opened) < 16 * shards, f"only shards {sorted(found)} take connections"
            opened.append(client(address))
            found.setdefault(int(opened[-1].get("/ping").headers[SHARD_HEADER]), opened[-1])
        yield [found[index] for index in range(shards)]
    finally:
        for one in opened:
            one.close()


def events(response: httpx.Response) -> list[Any]:
    """The JSON events of a finished event stream, which must end with [DONE]."""
    return parse_events(response.read().decode())


def parse_events(body: str) -> list[Any]:
    """The JSON events in an event stream's text."""
    data = [line.removeprefix("data: ") for line in body.split("\n\n") if line.startswith("data: ")]
    assert data, f"no events in {body!r}"
    assert data[-1] == "[DONE]", data[-1]
    return [json.loads(item) for item in data[:-1]]


def request_bytes(path: str, body: Any, *, method: str = "POST") -> bytes:
    """One HTTP/1.1 request; `body` is JSON-able, or bytes to send as they are."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = f"{method} {path} HTTP/1.1\r\nHost: test\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content


def raw_request(address: Address, path: str, body: Any) -> socket.socket:
    """Send a request on a new connection and leave the answer unread."""
    sock = socket.create_connection(address, timeout=20)
    sock.sendall(request_bytes(path, body))
    return sock


def read_until(sock: socket.socket, mark: bytes) -> bytes:
    """Read up to and over `mark`; fails when the connection ends before."""
    data = b""
    while mark not in data:
        piece = sock.recv(65536)
        assert piece, f"the connection ended after {data!r}"
        data += piece
    return data


def reset(sock: socket.socket) -> None:
    """Close with RST, as a killed client's kernel does."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


def _url(address: Address) -> str:
    return f"http://{address[0]}:{address[1]}"
