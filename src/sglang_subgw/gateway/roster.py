"""Which shards there are and are to be: one at a time gives up its place, to start again or for good."""

from __future__ import annotations

import dataclasses
import itertools
import logging
import time
from collections import deque
from collections.abc import Callable, Collection

from ..config import GatewayConfig
from ..contract import Segment
from .handle import ShardHandle

log = logging.getLogger("sglang_subgw.gateway")


class Roster:
    """The shards of one gateway; used by the supervisor's thread only."""

    def __init__(self, config: GatewayConfig, segment: Segment, *, scratch_dir: str) -> None:
        self.shards: list[ShardHandle] = []
        """All that have a place, in no order."""
        self.on_removed: Callable[[ShardHandle], None] = lambda shard: None
        """Called with each that has given up its place for good."""
        self._config = config
        self._segment = segment
        self._scratch_dir = scratch_dir
        self._to_restart: deque[ShardHandle] = deque()
        self._add(config.shards)

    def resize(self, count: int) -> None:
        """Have `count` shards: those missing are there to be started, those too many leave by `change_next`."""
        log.info("%d shards from now on; they were %d.", count, self._config.shards)
        self._config = dataclasses.replace(self._config, shards=count)
        self._add(count - sum(not shard.leaving for shard in self.shards))

    def restart(self, indices: Collection[int]) -> None:
        """Have these start again, by `change_next`."""
        for shard in self.shards:
            if shard.index in indices and shard not in self._to_restart:
                self._to_restart.append(shard)

    def change_next(self) -> None:
        """If every shard serves, let the next one that is to leave or to start again begin with it."""
        surplus = len(self.shards) > self._config.shards
        if not (surplus or self._to_restart):
            return
        last = max(self.shards, key=lambda shard: shard.index)
        if surplus and last.ended:
            self.remove(last)
        if any(not shard.serving and not shard.stalled for shard in self.shards):
            return
        shard = last if surplus else self._to_restart.popleft()
        if shard in self.shards:
            log.info("Shard %d %s.", shard.index, "ends" if surplus else "starts again")
            shard.retire(time.monotonic(), self._config.drain_timeout_seconds, again=not surplus)

    def give_up(self, shard: ShardHandle, reason: str) -> None:
        """A shard that was added has never served: the others go on without it."""
        log.error("Shard %d can't be added, the others serve on: %s", shard.index, reason)
        self._config = dataclasses.replace(self._config, shards=self._config.shards - 1)
        shard.leaving = shard.stopping = True
        if shard.ended:
            self.remove(shard)

    def remove(self, shard: ShardHandle) -> None:
        """It has ended for good: its place is free."""
        self.shards.remove(shard)
        self.on_removed(shard)
        shard.vacate()
        log.info("Shard %d is gone; %d shards are left.", shard.index, len(self.shards))

    def _add(self, count: int) -> None:
        taken = {shard.index for shard in self.shards}
        free = (index for index in range(len(self._segment.slots)) if index not in taken)
        for index in itertools.islice(free, max(0, count)):
            self.shards.append(ShardHandle(index, self._config, self._segment, scratch_dir=self._scratch_dir))
