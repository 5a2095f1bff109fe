"""The gateway's own thread: starts shards, hands connections to the least loaded, restarts what fails, drains.

Everything here happens in one thread around one selector; other threads only leave calls for it.
"""

from __future__ import annotations

import logging
import os
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Collection
from typing import Any, Protocol

from ..config import GatewayConfig
from ..contract import GatewayState, Segment
from ..errors import ShardStartError
from ..system.channel import ChannelClosedError, DescriptorLostError
from .acceptor import Acceptor
from .handle import ShardHandle
from .roster import Roster

log = logging.getLogger("sglang_subgw.gateway")

_AFTER_DRAIN_SECONDS = 5.0
_AFTER_FAILURE_SECONDS = 2.0
_TICK_SECONDS = 0.25


class Fence(Protocol):
    """Ends in the engine what a dead shard left running."""

    def __call__(self, index: int, generation: int) -> None: ...


class Supervisor(threading.Thread):
    """Runs the shards of one gateway from start to end."""

    def __init__(
        self, config: GatewayConfig, segment: Segment, sockets: list[socket.socket], scratch_dir: str, fence: Fence
    ) -> None:
        super().__init__(name="subgw-supervisor")
        self.ready = threading.Event()
        """Set once all shards serve, and at the end in any case."""
        self.failure = ""
        """Why the gateway failed, "" for a clean end."""
        self.on_end: Callable[[], None] = lambda: None
        """Called from this thread, as its last act."""
        self.stuck: list[int] = []
        """Shards that did not end, and can't be ended by force."""
        self._config = config
        self._segment = segment
        self._fence = fence
        self._selector = selectors.DefaultSelector()
        self._wake_in, self._wake_out = socket.socketpair()
        self._calls: deque[Callable[[], None]] = deque()
        self._stop_at: float | None = None
        self._roster = Roster(config, segment, scratch_dir=scratch_dir)
        self.shards = self._roster.shards
        self._acceptor = Acceptor(self._selector, sockets, self.shards, config)
        self._roster.on_removed = self._acceptor.on_removed

    # Called from any thread.

    def drain(self, timeout: float) -> None:
        """Stop accepting, let what runs finish for up to `timeout` seconds, then end."""
        self._call(lambda: self._begin_stop(timeout))

    def restart_shards(self, indices: Collection[int]) -> None:
        """Start these shards again, one after the other, while the others serve."""
        self._call(lambda: self._roster.restart(indices))

    def resize(self, count: int) -> None:
        """Have `count` shards: new ones start at once, those too many end one after the other."""
        self._call(lambda: self._roster.resize(count))

    def fail(self, reason: str) -> None:
        """End with an error to everything in flight: the engine is gone."""
        self._call(lambda: self._begin_failure(reason))

    def _call(self, call: Callable[[], None]) -> None:
        self._calls.append(call)
        try:
            self._wake_out.send(b"\0")
        except OSError:
            # The thread has ended, or has more wake-ups waiting than it needs.
            return

    # The thread.

    def run(self) -> None:
        """Serve until drained or failed."""
        try:
            self._wake_in.setblocking(False)
            self._wake_out.setblocking(False)
            self._selector.register(self._wake_in, selectors.EVENT_READ, self._on_wake)
            while not self._ended():
                self._segment.beat()
                if self._stop_at is None:
                    self._start_shards()
                    self._roster.change_next()
                self._acceptor.watch(open_=self.ready.is_set())
                for key, _ in self._selector.select(self._timeout()):
                    key.data()
                self._check_deadlines()
        except BaseException as exc:
            log.exception("The gateway's supervisor failed.")
            self.failure = self.failure or f"{type(exc).__name__}: {exc}"
        finally:
            self._close()
            self.ready.set()
            self.on_end()

    def _ended(self) -> bool:
        return self._stop_at is not None and all(shard.ended for shard in self.shards)

    def _timeout(self) -> float:
        due = [shard.due for shard in self.shards if shard.due is not None]
        if self._stop_at is not None:
            due.append(self._stop_at)
        if self._acceptor.due is not None:
            due.append(self._acceptor.due)
        # What is due already was seen to, or waits for an event, such as a shard that starts when another has.
        now = time.monotonic()
        return min([_TICK_SECONDS, *(at - now for at in due if at > now)])

    def _on_wake(self) -> None:
        self._wake_in.recv(4096)
        while self._calls:
            self._calls.popleft()()

    # Shards.

    def _start_shards(self) -> None:
        now = time.monotonic()
        starting = sum(shard.starting for shard in self.shards)
        for shard in self.shards:
            # More at a time than there are cores only makes each of them slower.
            if starting >= max(1, os.cpu_count() or 1):
                return
            if shard.startable(now):
                try:
                    shard.start(now)
                except ShardStartError as exc:
                    self._on_failed(shard, str(exc))
                    continue
                self._selector.register(shard.channel, selectors.EVENT_READ, lambda s=shard: self._on_channel(s))
                starting += 1

    def _on_channel(self, shard: ShardHandle) -> None:
        while True:
            try:
                message, fds = shard.channel.receive()
            except BlockingIOError:
                return
            except DescriptorLostError as exc:
                log.error("A connection that shard %d gave away is lost: %s.", shard.index, exc)
                continue
            except ChannelClosedError:
                self._on_gone(shard)
                return
            if fds:
                # A shard that is to start again gives its idle connections away.
                shard.asked = max(0, shard.asked - 1)
                self._acceptor.take(socket.socket(fileno=fds[0]), idle=True)
            else:
                self._on_message(shard, message.pop("kind"), message)

    def _on_message(self, shard: ShardHandle, kind: str, message: dict[str, Any]) -> None:
        if kind == "ready":
            shard.on_ready()
            self._acceptor.on_ready(shard)
            if self.ready.is_set():
                self._acceptor.share()
            elif self._stop_at is None and all(s.serving for s in self.shards):
                self._segment.set_state(GatewayState.READY)
                self._acceptor.listen()
                self.ready.set()
        elif kind == "failed":
            shard.on_failed(message["reason"], message["traceback"])
        elif kind == "stopped":
            shard.on_stopped()
        elif kind == "abort":
            for other in self.shards:
                if other is not shard and other.serving:
                    other.send("abort", rid=message["rid"])
        else:
            log.error("Shard %d sent a message of unknown kind %r.", shard.index, kind)

    def _on_gone(self, shard: ShardHandle) -> None:
        self._selector.unregister(shard.channel)
        generation, was_expected = shard.generation, shard.stopping
        reason = shard.on_gone(time.monotonic(), restart=self._stop_at is None)
        if shard.leaving and self._stop_at is None:
            self._roster.remove(shard)
        if was_expected and not reason:
            return
        # An old life's requests must not go on in the engine with nobody to read their answers.
        self._fence(shard.index, generation)
        self._on_failed(shard, reason)

    def _on_failed(self, shard: ShardHandle, reason: str) -> None:
        if self._stop_at is not None:
            log.error("Shard %d ended during the stop: %s", shard.index, reason)
        elif shard.leaving:
            log.error("Shard %d, which was to end, did so otherwise: %s", shard.index, reason)
        elif not self.ready.is_set() or (shard.hopeless and shard.proven):
            self._begin_failure(f"Shard {shard.index} failed: {reason}")
        elif shard.hopeless:
            self._roster.give_up(shard, reason)
        else:
            log.error("Shard %d ended and is started again: %s", shard.index, reason)

    def _check_deadlines(self) -> None:
        now = time.monotonic()
        for shard in self.shards:
            if shard.late(now):
                reason = f"it was not ready within {self._config.start_timeout_seconds:g} s"
                if self._config.serve:
                    reason += ", which a serve function is once it awaits engine.until_draining()"
                if not shard.kill(reason) or not self.ready.is_set():
                    self._begin_failure(f"Shard {shard.index} failed: {reason}.")
                elif not (shard.leaving or shard.proven):
                    self._roster.give_up(shard, reason)
            if shard.overdue(now) and not shard.kill():
                self._begin_failure(f"Shard {shard.index} does not end, and its mode can't end it by force.")
            self._watch_heart(shard)
        if self._stop_at is not None and now >= self._stop_at:
            self._stop_at = now + _AFTER_DRAIN_SECONDS
            for shard in self.shards:
                if not shard.ended and not shard.kill():
                    self.stuck.append(shard.index)
                    shard.abandon()
                    log.error("Shard %d does not end, and an interpreter can't be ended by force.", shard.index)

    def _watch_heart(self, shard: ShardHandle) -> None:
        if not shard.answering or shard.killed:
            return
        silent = shard.silent_seconds()
        stalled = silent > self._config.stall_seconds
        if stalled and not shard.stalled:
            log.error(
                "Shard %d is stalled: its loop has not turned for %.1f s; it gets no connections.", shard.index, silent
            )
        elif shard.stalled and not stalled:
            log.warning("Shard %d is no longer stalled.", shard.index)
        shard.stalled = stalled
        if silent > self._config.stall_kill_seconds and shard.kill(f"its loop did not turn for {silent:.1f} s"):
            log.error("Shard %d was killed: its loop had not turned for %.1f s.", shard.index, silent)

    # The end.

    def _begin_stop(self, timeout: float) -> None:
        now = time.monotonic()
        deadline = now + timeout + _AFTER_DRAIN_SECONDS
        self._stop_at = deadline if self._stop_at is None else min(self._stop_at, deadline)
        if self._segment.state is not GatewayState.FAILED:
            self._segment.set_state(GatewayState.DRAINING)
        self._acceptor.close()
        for shard in self.shards:
            shard.stop(timeout)

    def _begin_failure(self, reason: str) -> None:
        if self.failure:
            return
        self.failure = reason
        self._segment.set_state(GatewayState.FAILED, reason)
        for shard in self.shards:
            if shard.answering:
                shard.send("fail", reason=reason)
        self._begin_stop(_AFTER_FAILURE_SECONDS)

    def _close(self) -> None:
        self._acceptor.close()
        for shard in self.shards:
            if not shard.ended:
                shard.kill()
                shard.abandon()
        self._selector.close()
        self._wake_in.close()
        self._wake_out.close()
