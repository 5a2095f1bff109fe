"""KV cache events, subscribed to once per engine and passed on, unread, to every worker that asks: see `frames`."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from typing import Final

import zmq

from ..contract import KvEventFacts
from ..errors import EngineStartError
from ..system.seldom import Seldom
from .frames import NOTICE_SECONDS, NUMBER_BYTES, number_frame, rank_frame

log = logging.getLogger("sglang_subgw.engine")

_BATCHES_PER_TURN: Final = 256
_SUBSCRIBER_LIMIT: Final = 1000
"""Batches that wait here for one subscriber; its own limit comes on top."""
_SOURCE_LIMIT: Final = 100_000
_CONNECT_MS: Final = 5000


class KvEventRelay:
    """Passes events on from `start` to `close`, in a thread of its own."""

    def __init__(self, facts: KvEventFacts) -> None:
        self._facts = facts
        self._context = zmq.Context()
        self._out = self._context.socket(zmq.XPUB)
        self._sources: dict[zmq.Socket[bytes], bytes] = {}
        self._next: dict[bytes, bytes] = {}
        """By rank, the number that comes next."""
        self._seldom = Seldom(log)
        self._wake_out, self._wake_in = os.pipe()
        self._thread = threading.Thread(target=self._serve, name="subgw-kv-events")

    def start(self) -> None:
        """Bind, subscribe, and pass on what is published from now on; raises EngineStartError for a bad endpoint."""
        endpoint = self._facts.socket
        self._out.sndhwm = _SUBSCRIBER_LIMIT
        # Each subscriber is answered, also one that asks for what others have.
        self._out.setsockopt(zmq.XPUB_VERBOSE, 1)
        try:
            self._out.bind(endpoint)
            for source in self._facts.sources:
                endpoint = source.endpoint
                socket = self._context.socket(zmq.SUB)
                self._sources[socket] = rank = rank_frame(source.dp_rank)
                self._next[rank] = b""
                socket.rcvhwm = _SOURCE_LIMIT
                socket.setsockopt(zmq.IPV6, "[" in endpoint)
                socket.subscribe(source.topic)
                _connect(socket, endpoint)
        except zmq.ZMQError as exc:
            self._close_sockets()
            raise EngineStartError(
                f"KV events can't be passed on ({endpoint}): {zmq.strerror(exc.errno or 0)}."
            ) from exc
        self._thread.start()

    def close(self) -> None:
        """Stop, and leave no file. Safe to call twice."""
        if self._thread.ident is not None and self._wake_in >= 0:
            os.close(self._wake_in)
            self._wake_in = -1
            self._thread.join()
        self._close_sockets()

    def _close_sockets(self) -> None:
        if self._context.closed:
            return
        for socket in (self._out, *self._sources):
            socket.close(0)
        self._context.term()
        for descriptor in (self._wake_in, self._wake_out):
            if descriptor >= 0:
                os.close(descriptor)
        self._wake_in = self._wake_out = -1
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._facts.socket.removeprefix("ipc://"))

    def _serve(self) -> None:
        poller = zmq.Poller()
        for socket in (self._wake_out, self._out, *self._sources):
            poller.register(socket, zmq.POLLIN)
        notice = 0.0
        while True:
            ready = dict(poller.poll(round(NOTICE_SECONDS * 1000)))
            if self._wake_out in ready:
                return
            for socket, rank in self._sources.items():
                if socket in ready:
                    self._pass_on(socket, rank)
            now = time.monotonic()
            if (self._out in ready and self._has_new_subscriber()) or now >= notice:
                notice = now + NOTICE_SECONDS
                for rank, number in self._next.items():
                    self._out.send_multipart([rank, number, b""])

    def _pass_on(self, socket: zmq.Socket[bytes], rank: bytes) -> None:
        for _ in range(_BATCHES_PER_TURN):
            try:
                frames = socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            if len(frames) != 3 or len(frames[1]) != NUMBER_BYTES or not frames[2]:
                self._seldom.error("What rank %d published is no batch of KV events.", int.from_bytes(rank))
                continue
            _, number, batch = frames
            self._out.send_multipart([rank, number, batch])
            self._next[rank] = number_frame(int.from_bytes(number) + 1)

    def _has_new_subscriber(self) -> bool:
        """Read what subscribers say; whether one of them has come."""
        found = False
        while True:
            try:
                found |= self._out.recv(zmq.NOBLOCK)[:1] == b"\1"
            except zmq.Again:
                return found


def _connect(socket: zmq.Socket[bytes], endpoint: str) -> None:
    """Connect, and wait for that: a publisher forgets at once what nobody has subscribed to."""
    monitor = socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED)
    try:
        socket.connect(endpoint)
        if not monitor.poll(_CONNECT_MS):
            log.warning("Nobody publishes KV events at %s yet: the first of them may be missing.", endpoint)
    finally:
        socket.disable_monitor()
        monitor.close(0)
