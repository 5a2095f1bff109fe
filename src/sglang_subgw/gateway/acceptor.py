"""Accepting connections and handing each to the shard with the least to do."""

from __future__ import annotations

import logging
import math
import selectors
import socket
import time
from collections import deque
from collections.abc import Sequence

from ..config import Accept, GatewayConfig
from ..system.seldom import Seldom
from . import listener
from .handle import ShardHandle
from .room import DescriptorRooms

log = logging.getLogger("sglang_subgw.gateway")

_ACCEPTS_PER_WAKEUP = 64
_PAUSE_SECONDS = 0.1


class Acceptor:
    """The listening sockets in the supervisor's selector; used by its thread only.

    With Accept.REUSEPORT each shard accepts from sockets of its own; the gateway keeps them over the shard's lives, and
    accepts from them while the shard doesn't serve.
    """

    def __init__(
        self,
        selector: selectors.BaseSelector,
        sockets: list[socket.socket],
        shards: Sequence[ShardHandle],
        config: GatewayConfig,
    ) -> None:
        self.closed = False
        self._selector = selector
        self._sockets = sockets
        self._shards = shards
        self._backlog = config.backlog
        self._per_shard = config.accept is Accept.REUSEPORT
        self._own: dict[int, list[socket.socket]] = {}
        """The sockets of each shard, by its index."""
        self._listening = False
        self._watched: set[socket.socket] = set()
        self._rooms = DescriptorRooms(shards)
        self._refused = Seldom(log)
        self._pause_until = 0.0
        self._parked: deque[tuple[socket.socket, bool]] = deque()
        """Connections that no shard could take when they came, and whether each was idle."""

    @property
    def due(self) -> float | None:
        """When a pause ends, in time.monotonic's seconds."""
        return self._pause_until or None

    def listen(self) -> None:
        """From now on connections are not refused any more."""
        self._listening = True
        if self._per_shard:
            for shard in self._shards:
                self.on_ready(shard)
        else:
            for sock in self._sockets:
                sock.listen(self._backlog)

    def on_ready(self, shard: ShardHandle) -> None:
        """A shard serves now: it gets what waits for one, and its own listening sockets."""
        self.hand_over_parked()
        if not self._per_shard or not self._listening or self.closed:
            return
        if shard.index not in self._own:
            self._own[shard.index] = [listener.sibling(sock) for sock in self._sockets]
            for sock in self._own[shard.index]:
                sock.setblocking(False)
                sock.listen(self._backlog)
        for sock in self._own[shard.index]:
            shard.send("listen", fds=(sock.fileno(),))

    def on_removed(self, shard: ShardHandle) -> None:
        """A shard is gone for good: others get what waits on its own sockets, which are closed."""
        for sock in self._own.pop(shard.index, ()):
            self._accept(sock)
            if sock in self._watched:
                self._watched.discard(sock)
                self._selector.unregister(sock)
            sock.close()

    def watch(self, *, open_: bool) -> None:
        """Accept while `open_` and a shard serves; until then connections wait in the kernel's backlog."""
        if self._pause_until and time.monotonic() >= self._pause_until:
            self._pause_until = 0.0
        wanted: set[socket.socket] = set()
        if open_ and not self.closed and not self._pause_until and any(shard.serving for shard in self._shards):
            self.hand_over_parked()
            # What comes after those that no shard can take now waits better in the backlog.
            wanted.update(() if self._parked else self._wanted())
        for sock in self._watched - wanted:
            self._selector.unregister(sock)
        for sock in wanted - self._watched:
            self._selector.register(sock, selectors.EVENT_READ, lambda s=sock: self._accept(s))
        self._watched = wanted

    def _wanted(self) -> list[socket.socket]:
        if not self._per_shard:
            return self._sockets
        return [sock for shard in self._shards if not shard.serving for sock in self._own.get(shard.index, ())]

    def take(self, connection: socket.socket, *, idle: bool = False) -> None:
        """Hand a connection over now, or as soon as a shard serves; after `close` it is closed."""
        if self.closed:
            connection.close()
            return
        self._parked.append((connection, idle))
        self.hand_over_parked()

    def hand_over_parked(self) -> None:
        """Hand over what waits for a shard."""
        while self._parked and self._hand_over(*self._parked[0]):
            self._parked.popleft()[0].close()

    def share(self) -> None:
        """A shard came anew: let those with more than their part of the connections give some away."""
        serving = [shard for shard in self._shards if shard.serving]
        if not serving:
            return
        part = math.ceil(sum(shard.connections for shard in serving) / len(serving))
        for shard in serving:
            if (surplus := shard.connections - shard.asked - part) > 0:
                shard.share(surplus)

    def close(self) -> None:
        """Refuse connections from now on. Safe to call twice."""
        self.watch(open_=False)
        self.closed = True
        listener.close(self._sockets)
        for own in self._own.values():
            listener.close(own)
        self._own.clear()
        while self._parked:
            self._parked.popleft()[0].close()

    def _accept(self, sock: socket.socket) -> None:
        for _ in range(_ACCEPTS_PER_WAKEUP):
            if not self._candidates():
                self._pause("the shards have no file descriptors left for more; ulimit -n raises their number")
                return
            try:
                connection, _ = sock.accept()
            except BlockingIOError:
                return
            except ConnectionAbortedError:
                continue
            except OSError as exc:
                self._pause(str(exc))
                return
            self.take(connection)
            if self._parked:
                self._pause("no shard takes one")
                return

    def _pause(self, reason: str) -> None:
        """Leave those that come to the kernel for a moment: it has a backlog, and room may come."""
        if any(shard.serving for shard in self._shards):
            self._refused.error("Connections wait: %s.", reason)
        self._pause_until = time.monotonic() + _PAUSE_SECONDS
        self.watch(open_=True)

    def _candidates(self) -> list[ShardHandle]:
        return [shard for shard in self._shards if shard.serving and self._rooms.left(shard) > 0]

    def _hand_over(self, connection: socket.socket, idle: bool) -> bool:
        # An idle connection may never have another request: it is the number of connections that it makes uneven.
        for shard in sorted(self._candidates(), key=lambda s: s.idle_load if idle else s.load):
            if shard.hand_over(connection.fileno(), idle=idle):
                self._rooms.use(shard)
                return True
        return False
