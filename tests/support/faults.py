"""Faults in one shard of a gateway, and streams that must or must not feel them."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final, Self

from .client import SHARD_HEADER, raw_request, read_until
from .stack import Stack, generate_body

APP: Final = "support.apps.faulty:app"
_SHARD_MARK: Final = f"{SHARD_HEADER}: ".encode()


def until(condition: Callable[[], bool], seconds: float = 10.0, what: str = "it") -> float:
    """Wait for what another thread or process does; returns how long it took."""
    started = time.monotonic()
    while not condition():
        assert time.monotonic() < started + seconds, f"{what} did not happen within {seconds:g} s"
        time.sleep(0.01)
    return time.monotonic() - started


class Streaming:
    """A long stream on a shard."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        head = read_until(sock, b"\n\n")
        self.shard = int(head.partition(_SHARD_MARK)[2].partition(b"\r\n")[0])

    def goes_on(self) -> None:
        """Two more chunks arrive."""
        for _ in range(2):
            read_until(self._sock, b"\n\n")

    def rest(self) -> bytes:
        """Everything up to [DONE]."""
        return read_until(self._sock, b"[DONE]")

    def broken(self) -> bytes:
        """Everything up to the connection's end."""
        data = b""
        try:
            while piece := self._sock.recv(65536):
                data += piece
        except ConnectionError:
            pass
        return data


class FaultyStack:
    """A gateway with a stream on each of its shards."""

    def __init__(self, stack: Stack, streams: list[Streaming]) -> None:
        self.stack = stack
        self.streams = streams

    def inject(self, shard: int, name: str, n: float = 0.0) -> dict[str, Any]:
        """Make something happen in a shard, a moment after this returns."""
        with self.stack.client_per_shard() as clients:
            answer = clients[shard].get(f"/fault/{name}", params={"n": n})
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    def state(self, shard: int) -> tuple[str, int]:
        """Its state and generation."""
        found = self.stack.gateway.shards[shard]
        return found["state"], found["generation"]

    def serves_again(self, shard: int, generation: int = 2, seconds: float = 10.0) -> float:
        """Until the shard's next life is ready and it answered a request; returns how long that took."""
        took = until(lambda: self.state(shard) == ("ready", generation), seconds, f"shard {shard}'s next life")
        # The other shards have streams: a new connection goes to the one that has nothing to do, once the connections
        # that its last life gave away have been closed.
        until(lambda: self._answers() == shard, seconds, f"an answer of shard {shard}")
        return took

    def _answers(self) -> int:
        answer = self.stack.post("/generate", generate_body("abc", 3))
        assert answer.json()["text"] == "abc"
        return int(answer.headers[SHARD_HEADER])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        return None


@contextmanager
def streams_on_each(stack: Stack, tokens: int = 4000) -> Iterator[FaultyStack]:
    """One stream on each shard, in shard order."""
    body = generate_body("abc", tokens, stream=True, ignore_eos=True)
    with ExitStack() as ends:
        opened = []
        for _ in range(stack.shard_count):
            sock = raw_request(stack.address, "/generate", body)
            ends.callback(sock.close)
            opened.append(Streaming(sock))
        streams = sorted(opened, key=lambda stream: stream.shard)
        assert [stream.shard for stream in streams] == list(range(stack.shard_count))
        yield FaultyStack(stack, streams)
