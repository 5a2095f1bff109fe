"""Where frames for the engine go: a socket of kind PUSH, connected to its router, and again whenever that is lost."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import time
from collections import deque
from typing import Final

from ...errors import WireError
from ...system.seldom import Seldom
from .protocol import Peer, head, hello

log = logging.getLogger("sglang_subgw.shard")

_AGAIN_SECONDS: Final = 0.1
_READ_BYTES: Final = 4096


class Push:
    """Frames to one peer, in their order, on one event loop; those that it can't take yet wait, as many as there are.

    A frame that was not sent whole when a connection was lost is sent again by the next one.
    """

    def __init__(self, path: str, loop: asyncio.AbstractEventLoop) -> None:
        """Connects at once if it can, else as soon as it can; raises OSError for a path that can't be one."""
        self._path = path
        self._loop = loop
        self._waiting: deque[bytes] = deque()
        self._sent = 0
        """Bytes of the first of them."""
        self._sock: socket.socket | None = None
        self._peer = Peer("PULL")
        self._later: asyncio.TimerHandle | None = None
        self._seldom = Seldom(log)
        self._connect()

    def send(self, frame: bytes) -> None:
        """Send a frame, or keep it until it can be sent; never blocks."""
        self._waiting.append(head(len(frame)) + frame)
        if len(self._waiting) == 1 and self._peer.ready:
            self._flush()

    def look(self) -> None:
        """See to what a lost wake-up may have left; raises WireError when the socket was closed by somebody else."""
        if self._sock is None:
            return
        try:
            self._sock.getsockname()
        except OSError as exc:
            raise WireError(f"The socket to {self._path} was closed behind its back: {exc.strerror}") from exc
        self._on_readable()

    def close(self, linger: float) -> None:
        """Give a peer that is there `linger` seconds to take what waits. Safe to call twice."""
        if self._later is not None:
            self._later.cancel()
            self._later = None
        if self._sock is None:
            return
        if self._waiting:
            with contextlib.suppress(OSError, WireError):
                self._flush_by(time.monotonic() + linger)
        self._disconnect()

    def _connect(self) -> None:
        self._later = None
        sock = socket.socket(socket.AF_UNIX)
        sock.setblocking(False)
        try:
            sock.connect(self._path)
            sock.send(hello("PUSH"))
            self._loop.add_reader(sock, self._on_readable)
        except (FileNotFoundError, ConnectionError, BlockingIOError):
            # Nobody is there yet, or any more: whoever watches the engine knows.
            sock.close()
            self._connect_later()
            return
        except BaseException:
            sock.close()
            raise
        self._sock = sock
        self._peer = Peer("PULL")

    def _connect_later(self) -> None:
        self._later = self._loop.call_later(_AGAIN_SECONDS, self._connect_again)

    def _connect_again(self) -> None:
        try:
            self._connect()
        except OSError as exc:
            self._seldom.error("%s can't be connected to: %s.", self._path, exc.strerror or exc)
            self._connect_later()

    def _on_readable(self) -> None:
        try:
            # To the end: of a peer that is gone with something of ours unread libuv tells but once, and uvloop nobody.
            while True:
                self._read()
        except BlockingIOError:
            self._flush()
        except OSError:
            self._on_lost()
        except Exception as exc:
            self._seldom.error("What is at %s is not an engine's router, and was hung up on: %s.", self._path, exc)
            self._on_lost()

    def _read(self) -> None:
        """What the peer has to say of itself; raises OSError when it is gone."""
        assert self._sock is not None
        data = self._sock.recv(_READ_BYTES)
        if not data:
            raise ConnectionResetError
        self._peer.feed(memoryview(data))
        if self._peer.answers:
            answers, self._peer.answers = self._peer.answers, b""
            self._waiting.append(answers)

    def _flush(self) -> None:
        """Send what waits, as much as the peer takes now."""
        if not self._peer.ready:
            return
        assert self._sock is not None
        try:
            while self._waiting:
                self._write(self._sock)
        except BlockingIOError:
            self._loop.add_writer(self._sock, self._on_writable)
        except OSError:
            self._on_lost()

    def _on_writable(self) -> None:
        assert self._sock is not None
        self._loop.remove_writer(self._sock)
        self._flush()

    def _flush_by(self, deadline: float) -> None:
        """Send all that waits; raises OSError when that takes too long, or the peer is gone."""
        assert self._sock is not None
        while self._waiting:
            if (left := deadline - time.monotonic()) <= 0:
                raise TimeoutError
            self._sock.settimeout(left)
            if self._peer.ready:
                self._write(self._sock)
            else:
                self._read()

    def _write(self, sock: socket.socket) -> None:
        data = self._waiting[0]
        self._sent += sock.send(memoryview(data)[self._sent :] if self._sent else data)
        if self._sent == len(data):
            self._waiting.popleft()
            self._sent = 0

    def _on_lost(self) -> None:
        self._disconnect()
        self._connect_later()

    def _disconnect(self) -> None:
        assert self._sock is not None
        self._loop.remove_reader(self._sock)
        self._loop.remove_writer(self._sock)
        self._sock.close()
        self._sock = None
        self._peer = Peer("PULL")
        self._sent = 0
