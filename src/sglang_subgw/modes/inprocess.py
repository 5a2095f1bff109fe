"""What the modes within this process share: one thread, alive from the shard's start to its end."""

from __future__ import annotations

import dataclasses
import os
import threading
import time

from ..shard.spec import ShardSpec
from ..system import arenas
from ..system.channel import Channel


class InProcessHost:
    """A dedicated thread; what runs in it is the subclass's."""

    def __init__(self, spec: ShardSpec) -> None:
        self.channel, self._shard_end = Channel.pair()
        self._spec = spec
        self._exit_reason = ""
        self._thread = threading.Thread(target=self._run, name=f"shard-{spec.index}")

    def start(self) -> None:
        """Start the thread."""
        arenas.enough_for_all_threads()
        self._spec = dataclasses.replace(
            self._spec, channel_fd=self._shard_end.fileno(), created_ns=time.monotonic_ns()
        )
        try:
            self._thread.start()
        except BaseException:
            self.channel.close()
            self._shard_end.close()
            raise

    def join(self, timeout: float) -> bool:
        """Wait for the thread's end."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def kill(self) -> bool:
        """A thread can't be ended by force: always False."""
        return False

    @property
    def pid(self) -> int:
        """This process."""
        return os.getpid()

    @property
    def exit_reason(self) -> str:
        """The error that the shard ended with, "" for a clean end."""
        return self._exit_reason

    def _run(self) -> None:
        try:
            self._run_shard()
        except BaseException as exc:
            self._exit_reason = self._exit_reason or f"{type(exc).__name__}: {exc}"
        finally:
            self._shard_end.close()

    def _run_shard(self) -> None:
        """Run the shard to its end; an error that leaves it becomes `exit_reason`."""
        raise NotImplementedError("a mode must say how its shard runs")
