"""A process that puts load on a server: many clients on one epoll, cheap enough not to be what is measured."""

from __future__ import annotations

import heapq
import itertools
import json
import os
import select
import sys
import time
from collections.abc import Callable
from typing import Any, Final

from ..system.child import Parent
from .client import Connection, Tally

_CONNECTS_PER_SECOND: Final = 1000


class Load:
    """All connections of one load generator, and the bench's messages between their events."""

    def __init__(self, parent: Parent, settings: dict[str, Any]) -> None:
        self._parent = parent
        self._poll = select.epoll()
        self._by_fd: dict[int, Connection] = {}
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._waiting = 0
        self.stopping = False
        address = settings["address"]
        target: Any = tuple(address) if isinstance(address, list) else address
        self._tallies: dict[str, Tally] = {}
        self._connections: list[Connection] = []
        for group in settings["groups"]:
            tally = self._tallies[group["name"]] = Tally(group["event_seconds"])
            self._connections += [Connection(self, group, target, tally) for _ in range(group["connections"])]
        self._waiting = len(self._connections)
        for number, connection in enumerate(self._connections):
            self.later(number / _CONNECTS_PER_SECOND, connection.begin)

    def watch(self, connection: Connection) -> None:
        """Call its `read` whenever there is something."""
        assert connection.sock is not None
        self._by_fd[connection.sock.fileno()] = connection
        self._poll.register(connection.sock.fileno(), select.EPOLLIN)

    def forget(self, connection: Connection) -> None:
        """Before it is closed, which takes its descriptor out of epoll."""
        assert connection.sock is not None
        self._by_fd.pop(connection.sock.fileno(), None)

    def later(self, seconds: float, call: Callable[[], None]) -> None:
        """Call once after a while."""
        heapq.heappush(self._timers, (time.monotonic() + seconds, next(self._numbers), call))

    def answered(self) -> None:
        """One more connection has had its first answer; says so when it was the last."""
        self._waiting -= 1
        if not self._waiting:
            self._parent.say(running=True)

    def run(self) -> None:
        """Until the bench closes."""
        control = sys.stdin.fileno()
        self._poll.register(control, select.EPOLLIN)
        by_fd, poll = self._by_fd, self._poll.poll
        while not self.stopping:
            for fd, _ in poll(self._due()):
                connection = by_fd.get(fd)
                if connection is not None:
                    connection.read()
                elif fd == control:
                    self._obey()
        for connection in self._connections:
            connection.close()
        self._poll.close()

    def _due(self) -> float:
        """Call what is due; seconds until the next timer."""
        timers = self._timers
        while timers:
            wait = timers[0][0] - time.monotonic()
            if wait > 0:
                return wait
            heapq.heappop(timers)[2]()
        return -1

    def _obey(self) -> None:
        data = os.read(sys.stdin.fileno(), 4096)
        if not data:
            self.stopping = True
        for line in data.splitlines():
            match json.loads(line)["do"]:
                case "begin":
                    self._reset()
                    self._parent.say(begun=time.monotonic())
                case "end":
                    self._parent.say(
                        ended=time.monotonic(), groups={name: tally.to_json() for name, tally in self._tallies.items()}
                    )

    def _reset(self) -> None:
        fresh = {name: Tally(tally.event_seconds) for name, tally in self._tallies.items()}
        for name, tally in self._tallies.items():
            fresh[name].said = tally.said
        for connection in self._connections:
            connection.tally = fresh[connection.group]
        self._tallies = fresh


def main() -> int:
    """Put load on until the bench closes."""
    parent = Parent()
    Load(parent, parent.settings()).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
