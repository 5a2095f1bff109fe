"""The engine's sockets: the router's PULL, and one PUSH per worker for each of router and detokenizer."""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path

import zmq

from ...errors import StorageError


class Transport:
    """Used from the engine's thread only, but for `wake`."""

    def __init__(self, worker_endpoint: str) -> None:
        self._path = Path(worker_endpoint.removeprefix("ipc://"))
        self._context = zmq.Context(1)
        self._router = self._context.socket(zmq.PULL)
        self._router.set_hwm(0)
        try:
            self._router.bind(worker_endpoint)
        except zmq.ZMQError as exc:
            self._router.close(0)
            self._context.term()
            raise StorageError(f"The router's socket can't be made ({worker_endpoint}): {exc.strerror}") from exc
        self._to_workers: dict[tuple[str, str], zmq.Socket[bytes]] = {}
        self._wake_reader, self._wake_writer = socket.socketpair()
        self._wake_reader.setblocking(False)
        self._poller = zmq.Poller()
        self._poller.register(self._wake_reader, zmq.POLLIN)
        self._poller.register(self._router, zmq.POLLIN)

    def wait(self, seconds: float | None) -> None:
        """Return when there is a frame, a wake-up, or the time is over."""
        events = self._poller.poll(None if seconds is None else max(0, round(seconds * 1000)))
        if any(source == self._wake_reader.fileno() for source, _ in events):
            with contextlib.suppress(BlockingIOError):
                self._wake_reader.recv(4096)

    def wake(self) -> None:
        """Make `wait` return; from any thread."""
        with contextlib.suppress(OSError):
            self._wake_writer.send(b"\0")

    def receive(self) -> bytes | None:
        """The router's next frame, if there is one."""
        try:
            return self._router.recv(zmq.NOBLOCK)
        except zmq.Again:
            return None

    def stop_reading(self) -> None:
        """Leave the router's socket bound and unread, as a router whose loop has ended does."""
        self._poller.unregister(self._router)

    def send(self, role: str, worker: str, frame: bytes) -> None:
        """Push a frame to a worker from one of the engine's processes."""
        pipe = self._to_workers.get((role, worker))
        if pipe is None:
            pipe = self._context.socket(zmq.PUSH)
            pipe.set_hwm(0)
            pipe.connect(worker)
            self._to_workers[role, worker] = pipe
        pipe.send(frame)

    def close(self, *, linger_ms: int) -> None:
        """Close everything and remove the router's socket file."""
        for pipe in self._to_workers.values():
            pipe.close(linger_ms)
        self._router.close(0)
        self._context.term()
        self._wake_reader.close()
        self._wake_writer.close()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path)
