"""Where the engine's processes send to: a bound socket of kind PULL, and those that have connected to it."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import socket
from collections.abc import Callable
from typing import Final

from ...errors import WireError
from ...system.seldom import Seldom
from .protocol import Peer, hello

log = logging.getLogger("sglang_subgw.shard")

_BYTES_PER_READ: Final = 1 << 18
"""More than this waits until others on the loop have had their turn."""
_BACKLOG: Final = 100
_AGAIN_SECONDS: Final = 0.1
_FULL: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


class Pull:
    """Frames of all peers, on one event loop; `close` leaves no socket file."""

    def __init__(self, path: str, loop: asyncio.AbstractEventLoop) -> None:
        """Bound at once: peers that connect before `start` wait. Raises OSError."""
        self._path = path
        self._loop = loop
        self._buffer = bytearray(_BYTES_PER_READ)
        self._view = memoryview(self._buffer)
        self._peers: dict[socket.socket, Peer] = {}
        self._on_frames: Callable[[list[bytes]], None] | None = None
        self._on_failure: Callable[[Exception], None] | None = None
        self._later: asyncio.TimerHandle | None = None
        self._seldom = Seldom(log)
        self._listener = socket.socket(socket.AF_UNIX)
        try:
            self._listener.setblocking(False)
            # A shard that was killed leaves its file.
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
            self._listener.bind(path)
            self._listener.listen(_BACKLOG)
        except BaseException:
            self._listener.close()
            raise

    def start(
        self, on_frames: Callable[[list[bytes]], None], on_failure: Callable[[Exception], None] | None = None
    ) -> None:
        """Call `on_frames` with all that came by each wake-up from now on, or `on_failure`, once, when that is over."""
        self._on_frames, self._on_failure = on_frames, on_failure
        self._loop.add_reader(self._listener, self._accept)

    def look(self) -> None:
        """Read what a lost wake-up may have left; raises WireError when a socket was closed by somebody else."""
        if self._on_frames is None:
            return
        for sock in (self._listener, *self._peers):
            try:
                place = sock.getsockname()
            except OSError as exc:
                place = exc.strerror
            if place != self._path:
                raise WireError(f"A socket of {self._path} was closed behind its back: {place}")
        for sock in list(self._peers):
            self._receive(sock)

    def close(self) -> None:
        """Safe to call twice."""
        if self._listener.fileno() < 0:
            return
        self._stop()
        self._listener.close()
        with contextlib.suppress(OSError):
            os.unlink(self._path)

    def _stop(self) -> None:
        self._on_frames = None
        if self._listener.fileno() >= 0:
            self._loop.remove_reader(self._listener)
        if self._later is not None:
            self._later.cancel()
        for peer in list(self._peers):
            self._drop(peer)

    def _accept(self) -> None:
        try:
            accepted, _ = self._listener.accept()
        except OSError as exc:
            if exc.errno in _FULL:
                # It goes on waiting, and would keep the loop turning.
                self._seldom.error("The engine can't connect to this shard, and waits: %s.", exc.strerror)
                self._loop.remove_reader(self._listener)
                self._later = self._loop.call_later(_AGAIN_SECONDS, self._accept_again)
            return
        accepted.setblocking(False)
        try:
            self._loop.add_reader(accepted, self._receive, accepted)
        except OSError as exc:
            self._seldom.error("The engine can't connect to this shard: %s.", exc.strerror)
            accepted.close()
            return
        self._peers[accepted] = Peer("PUSH")
        self._answer(accepted, hello("PULL"))

    def _accept_again(self) -> None:
        self._loop.add_reader(self._listener, self._accept)

    def _receive(self, sock: socket.socket) -> None:
        if (peer := self._peers.get(sock)) is None:
            return
        # libuv tells but once, and uvloop nobody, of a peer that is gone with something of ours unread: its end must be
        # found now. One that is ready has read what it gets.
        while self._read(sock, peer) and not peer.ready and sock in self._peers:
            pass

    def _read(self, sock: socket.socket, peer: Peer) -> bool:
        """Whether there was anything, and may be more."""
        try:
            size = sock.recv_into(self._buffer)
        except BlockingIOError:
            return False
        except OSError:
            size = 0
        if not size:
            self._drop(sock)
            return False
        try:
            frames = peer.feed(self._view[:size])
        except Exception as exc:
            # Its place in what it says is lost. It connects again, if it is zmq.
            self._seldom.error("What connected to %s is not an engine, and was hung up on: %s.", self._path, exc)
            self._drop(sock)
            return False
        if peer.answers:
            answers, peer.answers = peer.answers, b""
            self._answer(sock, answers)
        if frames:
            self._pass_on(frames)
        return True

    def _pass_on(self, frames: list[bytes]) -> None:
        on_frames, on_failure = self._on_frames, self._on_failure
        assert on_frames is not None
        try:
            on_frames(frames)
        except Exception as exc:
            # These frames are lost, and whatever comes may be no better.
            self._stop()
            if on_failure is None:
                raise
            on_failure(exc)

    def _answer(self, sock: socket.socket, data: bytes) -> None:
        try:
            sent = sock.send(data)
        except OSError:
            sent = 0
        # So few bytes fit into the buffer of a peer that reads.
        if sent < len(data):
            self._drop(sock)

    def _drop(self, sock: socket.socket) -> None:
        if self._peers.pop(sock, None) is not None:
            self._loop.remove_reader(sock)
            sock.close()
