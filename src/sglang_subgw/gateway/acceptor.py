"""Accepting connections and handing each to the shard with the least to do."""

from __future__ import annotations

import logging
import selectors
import socket
import time
from collections import deque
from collections.abc import Sequence

from . import listener
from .handle import ShardHandle

log = logging.getLogger("sglang_subgw.gateway")

_ACCEPTS_PER_WAKEUP = 64
_PAUSE_SECONDS = 0.1


class Acceptor:
    """The listening sockets in the supervisor's selector; used by its thread only."""

    def __init__(
        self, selector: selectors.BaseSelector, sockets: list[socket.socket], shards: Sequence[ShardHandle]
    ) -> None:
        self.closed = False
        self._selector = selector
        self._sockets = sockets
        self._shards = shards
        self._accepting = False
        self._pause_until = 0.0
        self._parked: deque[socket.socket] = deque()
        """Connections that no shard could take when they came."""

    @property
    def due(self) -> float | None:
        """When a pause ends, in time.monotonic's seconds."""
        return self._pause_until or None

    def listen(self, backlog: int) -> None:
        """From now on connections are not refused any more."""
        for sock in self._sockets:
            sock.listen(backlog)

    def watch(self, *, open_: bool) -> None:
        """Accept while `open_` and a shard serves; until then connections wait in the kernel's backlog."""
        if self._pause_until and time.monotonic() >= self._pause_until:
            self._pause_until = 0.0
        wanted = open_ and not self.closed and not self._pause_until and any(shard.serving for shard in self._shards)
        if wanted:
            self.hand_over_parked()
        if wanted == self._accepting:
            return
        self._accepting = wanted
        for sock in self._sockets:
            if wanted:
                self._selector.register(sock, selectors.EVENT_READ, lambda s=sock: self._accept(s))
            else:
                self._selector.unregister(sock)

    def take(self, connection: socket.socket) -> None:
        """Hand a connection over now, or as soon as a shard serves; after `close` it is closed."""
        if self.closed:
            connection.close()
            return
        self._parked.append(connection)
        self.hand_over_parked()

    def hand_over_parked(self) -> None:
        """Hand over what waits for a shard."""
        while self._parked and self._hand_over(self._parked[0]):
            self._parked.popleft().close()

    def close(self) -> None:
        """Refuse connections from now on. Safe to call twice."""
        self.watch(open_=False)
        self.closed = True
        listener.close(self._sockets)
        while self._parked:
            self._parked.popleft().close()

    def _accept(self, sock: socket.socket) -> None:
        for _ in range(_ACCEPTS_PER_WAKEUP):
            try:
                connection, _ = sock.accept()
            except BlockingIOError:
                return
            except ConnectionAbortedError:
                continue
            except OSError as exc:
                log.error("No connection can be accepted now: %s", exc)
                self._pause_until = time.monotonic() + _PAUSE_SECONDS
                self.watch(open_=True)
                return
            self.take(connection)
            if self._parked:
                return

    def _hand_over(self, connection: socket.socket) -> bool:
        for shard in sorted((s for s in self._shards if s.serving), key=lambda s: s.load):
            if shard.hand_over(connection.fileno()):
                return True
        return False
