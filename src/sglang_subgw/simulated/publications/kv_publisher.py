"""A simulated engine's KV cache events: a PUB per rank, past batches at a ROUTER, as SGLang's ZmqEventPublisher."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, Final
from zlib import crc32

import zmq

from ...contract import KvEventFacts, KvEventSource
from ...kv_events.frames import END_OF_REPLAY, number_frame
from ..wire.pack import pack
from .facts import BLOCK_SIZE

_BATCHES_PER_TURN: Final = 256


class KvPublisher:
    """Publishes from `start` to `close`, in the order of the calls; from any thread."""

    def __init__(self, facts: KvEventFacts, *, buffer_steps: int = 10_000) -> None:
        self.subscriptions = 0
        """How often anybody has subscribed to any rank."""
        self._context = zmq.Context()
        self._ranks = [_PublishingRank(self._context, source, buffer_steps) for source in facts.sources]
        self._queue: deque[tuple[int, list[dict[str, Any]], int]] = deque()
        self._wake_out, self._wake_in = os.pipe()
        self._thread = threading.Thread(target=self._serve, name="simulated-kv-events")

    def start(self) -> None:
        """Bind, and serve."""
        for rank in self._ranks:
            rank.bind()
        self._thread.start()

    def publish(self, events: Iterable[dict[str, Any]], rank: int = 0, *, skip: int = 0) -> None:
        """One batch of a rank's, after `skip` that have a number and never reach anybody."""
        self._queue.append((rank, list(events), skip))
        os.write(self._wake_in, b"\0")

    def stored(self, tokens: Sequence[int], rank: int = 0) -> None:
        """That the cache now holds the full blocks of these tokens."""
        if blocks := len(tokens) // BLOCK_SIZE:
            ids = list(tokens[: blocks * BLOCK_SIZE])
            hashes: list[int] = []
            for at in range(0, len(ids), BLOCK_SIZE):
                hashes.append(crc32(repr((hashes[-1:], ids[at : at + BLOCK_SIZE])).encode()))
            event = {"block_hashes": hashes, "parent_block_hash": None, "token_ids": ids, "block_size": BLOCK_SIZE}
            self.publish([{"type": "BlockStored", **event, "lora_id": None, "medium": "GPU"}], rank)

    def cleared(self) -> None:
        """That every rank's cache is empty."""
        for rank in range(len(self._ranks)):
            self.publish([{"type": "AllBlocksCleared"}], rank)

    def close(self) -> None:
        """End when all is published, and leave no file. Safe to call twice."""
        if self._wake_in < 0:
            return
        os.close(self._wake_in)
        self._wake_in = -1
        if self._thread.ident is not None:
            self._thread.join()
        os.close(self._wake_out)
        for rank in self._ranks:
            rank.close()
        self._context.term()

    def _serve(self) -> None:
        poller = zmq.Poller()
        poller.register(self._wake_out, zmq.POLLIN)
        for rank in self._ranks:
            for socket in rank.sockets:
                poller.register(socket, zmq.POLLIN)
        ended = False
        while not ended or self._queue:
            ready = dict(poller.poll(0 if self._queue else None))
            ended = ended or (self._wake_out in ready and not os.read(self._wake_out, 4096))
            for _ in range(min(len(self._queue), _BATCHES_PER_TURN)):
                number, events, skip = self._queue.popleft()
                self._ranks[number].send(events, skip)
            for rank in self._ranks:
                self.subscriptions += rank.new_subscriptions()
                rank.serve_replay()


class _PublishingRank:
    def __init__(self, context: zmq.Context[Any], source: KvEventSource, buffer_steps: int) -> None:
        self._source = source
        # In place of a PUB, as it tells who subscribes.
        self._publisher = context.socket(zmq.XPUB)
        self._publisher.setsockopt(zmq.XPUB_VERBOSE, 1)
        self._publisher.set_hwm(100_000)
        self._replay = context.socket(zmq.ROUTER) if source.replay_endpoint else None
        self._next = 0
        self._past: deque[tuple[int, bytes]] = deque(maxlen=buffer_steps)

    @property
    def sockets(self) -> list[zmq.Socket[bytes]]:
        return [self._publisher] if self._replay is None else [self._publisher, self._replay]

    def bind(self) -> None:
        self._publisher.bind(self._source.endpoint)
        if self._replay is not None:
            self._replay.bind(self._source.replay_endpoint)

    def send(self, events: list[dict[str, Any]], skip: int) -> None:
        for left in range(skip, -1, -1):
            payload = pack([time.time(), events, self._source.dp_rank])
            self._past.append((self._next, payload))
            if not left:
                self._publisher.send_multipart(self._frames(self._next, payload))
            self._next += 1

    def new_subscriptions(self) -> int:
        found = 0
        while self._publisher.poll(0):
            found += self._publisher.recv()[:1] == b"\1"
        return found

    def serve_replay(self) -> None:
        while self._replay is not None and self._replay.poll(0):
            client, _, first = self._replay.recv_multipart()
            for number, payload in self._past:
                if number >= int.from_bytes(first):
                    self._replay.send_multipart([client, b"", *self._frames(number, payload)])
            self._replay.send_multipart([client, b"", b"", END_OF_REPLAY, b""])

    def close(self) -> None:
        for socket, endpoint in (
            (self._publisher, self._source.endpoint),
            (self._replay, self._source.replay_endpoint),
        ):
            if socket is not None:
                socket.close(0)
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(endpoint.removeprefix("ipc://"))

    def _frames(self, number: int, payload: bytes) -> list[bytes]:
        return [self._source.topic.encode(), number_frame(number), payload]
