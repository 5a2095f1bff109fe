"""One shard as the supervisor sees it: its place, its channel, its state, when it may start again."""

from __future__ import annotations

import logging
import os
import time
from typing import Any

from ..config import GatewayConfig
from ..contract import Segment, ShardState, Word
from ..errors import ShardStartError
from ..modes import ShardHost, make_host
from ..shard.spec import ShardSpec
from ..system.channel import Channel, ChannelClosedError

log = logging.getLogger("sglang_subgw.gateway")

_BACKOFF_SECONDS = (0.0, 0.1, 0.5, 1.0, 2.0)
_STEADY_SECONDS = 60.0
"""A shard that served this long starts again with no back-off."""
_JOIN_SECONDS = 2.0
_AFTER_RETIREMENT_SECONDS = 5.0
_AFTER_FAILURE_SECONDS = 5.0


class ShardHandle:
    """All lives of one shard; used by the supervisor's thread only."""

    def __init__(self, index: int, config: GatewayConfig, segment: Segment, *, scratch_dir: str) -> None:
        self.index = index
        self.generation = segment.slots[index].get(Word.GENERATION)
        """Goes on where an earlier shard of this index left off: it is a part of every rid."""
        self.ended = True
        self.stopping = False
        """It was told to end, and gets no more connections."""
        self.stalled = False
        """Its loop has not turned for a while."""
        self.leaving = False
        """It ends for good, since fewer shards are wanted."""
        self.proven = False
        """It has served."""
        self.killed = False
        """It was ended by force, and is not gone yet."""
        self.asked = 0
        """Connections that it was asked to give away and has not given yet."""
        self._again = False
        self._retire_by: float | None = None
        self._config = config
        self._segment = segment
        self._scratch_dir = scratch_dir
        self._slot = segment.slots[index]
        self._slot.set(Word.STATE, ShardState.STARTING)
        self._host: ShardHost | None = None
        self._ready = False
        self._told_stopped = False
        self._reason = ""
        self._started_at = 0.0
        self._start_again_at = 0.0
        self._failures = 0

    @property
    def channel(self) -> Channel:
        """The gateway's end of the control channel of the present life."""
        assert self._host is not None
        return self._host.channel

    @property
    def starting(self) -> bool:
        """It was started and is not ready yet."""
        return not self.ended and not self._ready

    @property
    def serving(self) -> bool:
        """Connections may be handed to it."""
        return self._ready and not self.ended and not self.stopping and not self.stalled and not self._reason

    @property
    def answering(self) -> bool:
        """It may have requests: it serves, or drains."""
        return self._ready and not self.ended

    @property
    def load(self) -> tuple[int, int, int]:
        """The balancer's sort key."""
        return self._slot.load

    @property
    def underway(self) -> int:
        """Connections that were handed to it, and that it has not taken over yet."""
        return self._slot.underway

    @property
    def idle_load(self) -> tuple[int, int]:
        """The balancer's sort key for a connection that has no request."""
        return self._slot.idle_load

    @property
    def connections(self) -> int:
        """Open connections now, and those on their way."""
        return self._slot.idle_load[0]

    @property
    def due(self) -> float | None:
        """When the supervisor must look at it next, in time.monotonic's seconds."""
        if self.ended:
            return None if self.stopping else self._start_again_at
        if self._ready:
            return self._retire_by
        return self._started_at + self._config.start_timeout_seconds

    @property
    def hopeless(self) -> bool:
        """It failed as often as there are back-offs."""
        return self._failures > len(_BACKOFF_SECONDS)

    @property
    def pid(self) -> int:
        """The process it runs in, 0 before its first start."""
        return self._host.pid if self._host is not None else 0

    def startable(self, now: float) -> bool:
        """It isn't running and its back-off is over."""
        return self.ended and not self.stopping and now >= self._start_again_at

    def late(self, now: float) -> bool:
        """It has been starting for longer than it may."""
        return self.starting and now > self._started_at + self._config.start_timeout_seconds

    def overdue(self, now: float) -> bool:
        """It was to end, and has not for longer than it may."""
        return self._retire_by is not None and not self.ended and now > self._retire_by

    def silent_seconds(self) -> float:
        """Since its loop last turned; 0 while it isn't ready."""
        if self.ended or not self._ready:
            return 0.0
        return (time.monotonic_ns() - self._slot.get(Word.HEARTBEAT_NS)) / 1e9

    def start(self, now: float) -> None:
        """Begin its next life; raises ShardStartError where this process has nothing left to start one with."""
        self.generation += 1
        self.ended = self._ready = self._told_stopped = self.stalled = self._again = False
        self._retire_by = None
        self.asked = 0
        self.killed = False
        self._reason = ""
        self._started_at = now
        self._slot.set(Word.ACCEPTED, self._slot.get(Word.CONNECTIONS_SEEN))
        spec = ShardSpec(
            segment=self._segment.name,
            index=self.index,
            generation=self.generation,
            config=self._config,
            leader_pid=os.getpid(),
        )
        try:
            self._host = make_host(spec, scratch_dir=self._scratch_dir)
            self._host.start()
        except (OSError, RuntimeError) as exc:
            # Of descriptors, processes or threads, which there may be more of later.
            self.ended = True
            self._slot.set(Word.STATE, ShardState.FAILED)
            self._slot.note_failure(f"{type(exc).__name__}: {exc}")
            self._plan_next(now)
            raise ShardStartError(f"{type(exc).__name__}: {exc}") from exc
        self._host.channel.setblocking(False)

    def send(self, kind: str, **fields: Any) -> None:
        """Send a message; a shard that is gone is noticed elsewhere, one that doesn't read is logged."""
        try:
            self.channel.send(kind, **fields)
        except BlockingIOError:
            log.error("Shard %d does not read its channel: %r was not delivered.", self.index, kind)
        except ChannelClosedError:
            return

    def hand_over(self, fd: int, *, idle: bool) -> bool:
        """Give it a connection; False when it can't take one now."""
        try:
            self.channel.send("connection", fds=(fd,), idle=idle)
        except (BlockingIOError, ChannelClosedError):
            return False
        self._slot.add(Word.ACCEPTED)
        return True

    def stop(self, timeout: float) -> None:
        """Let it drain and end; one that is still starting ends as soon as it reads this."""
        self.stopping = True
        if not self.ended:
            self.send("drain", timeout=timeout)

    def share(self, count: int) -> None:
        """Ask it to give away so many more of its connections, each once it is between two requests."""
        self.asked += count
        self.send("share", limit=count)

    def retire(self, now: float, timeout: float, *, again: bool) -> None:
        """Let it finish what runs for up to `timeout` seconds and give its connections away; `again`: then restart."""
        self.stopping, self._again, self.leaving = True, again, not again
        if not self.ended:
            self._retire_by = now + timeout + _AFTER_RETIREMENT_SECONDS
            # One that isn't ready has nothing to give away yet.
            self.send("retire" if self._ready else "drain", timeout=timeout)

    def vacate(self) -> None:
        """Its place is free: nobody sees it any more, its counters and generation stay."""
        self._slot.set(Word.STATE, ShardState.EMPTY)

    def kill(self, reason: str = "") -> bool:
        """End it by force, and remember why; False where the mode can't."""
        killed = self._host is None or self._host.kill()
        if killed:
            self.killed = True
            self._reason = self._reason or reason
        return killed

    def abandon(self) -> None:
        """Stop waiting for it."""
        self.ended = True

    def on_ready(self) -> None:
        """It serves."""
        self._ready = self.proven = True

    def on_stopped(self) -> None:
        """It said that it ended as it was told to."""
        self._told_stopped = True

    def on_failed(self, reason: str, traceback: str) -> None:
        """It said why it is about to end, which must not take for ever."""
        self._reason = reason
        self._retire_by = time.monotonic() + _AFTER_FAILURE_SECONDS
        log.error("Shard %d failed: %s\n%s", self.index, reason, traceback)

    def on_gone(self, now: float, *, restart: bool) -> str:
        """Its place is gone: free it, plan the next start; returns why it ended, "" for a clean end."""
        assert self._host is not None
        joined = self._host.join(_JOIN_SECONDS)
        reason = self._reason or self._host.exit_reason
        if not reason and not self._told_stopped:
            reason = "it ended without a word" if joined else "its channel closed, but it did not end"
        if not reason and not self.stopping:
            reason = "it ended without being told to"
        self._host.channel.close()
        self.ended = True
        self._ready = self.stalled = False
        self._slot.set(Word.STATE, ShardState.FAILED if reason else ShardState.STOPPED)
        if reason:
            self._slot.note_failure(reason)
        if self._again and restart:
            self.stopping = False
            self._start_again_at = now
        if restart and reason:
            self._plan_next(now)
        return reason

    def _plan_next(self, now: float) -> None:
        self._failures = 1 if now - self._started_at > _STEADY_SECONDS else self._failures + 1
        self._start_again_at = now + _BACKOFF_SECONDS[min(self._failures, len(_BACKOFF_SECONDS)) - 1]

    def describe(self) -> dict[str, Any]:
        """Its state for people and tools."""
        return {"index": self.index, "pid": self.pid, **self._slot.snapshot()}
