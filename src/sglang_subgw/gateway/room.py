"""How many connections the shards' processes have descriptors for.

The kernel drops a descriptor that its receiver has no place for: such a connection has to wait in the backlog instead.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Sequence
from typing import Final

from .handle import ShardHandle

_RESERVE: Final = 64
"""For all that isn't a connection: shards that start again, the engine, files of the application."""
_UNKNOWN: Final = 1024


class DescriptorRooms:
    """The room in each shard's process, measured again only when the last measure is used up."""

    def __init__(self, shards: Sequence[ShardHandle]) -> None:
        self._shards = shards
        self._left: dict[int, int] = {}

    def left(self, shard: ShardHandle) -> int:
        """How many connections may be handed to it."""
        left = self._left.get(shard.pid, 0)
        if left <= 0:
            beside = [other for other in self._shards if other.pid == shard.pid]
            left = free_descriptors(shard.pid) - sum(other.underway for other in beside)
            pids = {other.pid for other in self._shards}
            self._left = {pid: count for pid, count in self._left.items() if pid in pids}
            self._left[shard.pid] = left
        return left

    def use(self, shard: ShardHandle) -> None:
        """One was handed to it."""
        self._left[shard.pid] = self._left.get(shard.pid, 0) - 1


def free_descriptors(pid: int) -> int:
    """How many more connections a process may open, so that something is left for other things."""
    try:
        limit = resource.prlimit(pid, resource.RLIMIT_NOFILE)[0]
        used = len(os.listdir(f"/proc/{pid}/fd"))
    except (OSError, ValueError):
        # It has just ended, or the machine doesn't tell; then what is lost is only counted.
        return _UNKNOWN
    if limit == resource.RLIM_INFINITY:
        return _UNKNOWN
    return limit - used - min(_RESERVE, limit // 8)
