"""Mode process: a shard in a child process of its own, spawned, never forked."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import time

from ..shard.spec import ShardSpec
from ..system.channel import Channel


class ProcessHost:
    """One child process that runs the same shard code as every other mode."""

    def __init__(self, spec: ShardSpec) -> None:
        self.channel, self._shard_end = Channel.pair()
        self._spec = spec
        self._child: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Spawn the child; it finds the same modules as this process."""
        fd = self._shard_end.fileno()
        spec = dataclasses.replace(self._spec, channel_fd=fd, created_ns=time.monotonic_ns())
        path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
        try:
            self._child = subprocess.Popen(
                [sys.executable, "-P", "-m", "sglang_subgw.modes.child", spec.to_json()],
                env={**os.environ, "PYTHONPATH": path},
                pass_fds=(fd,),
                stdin=subprocess.DEVNULL,
            )
        except BaseException:
            self.channel.close()
            raise
        finally:
            self._shard_end.close()

    def join(self, timeout: float) -> bool:
        """Wait for the child's end and reap it."""
        if self._child is None:
            return True
        try:
            self._child.wait(timeout)
        except subprocess.TimeoutExpired:
            return False
        return True

    def kill(self) -> bool:
        """SIGKILL the child."""
        if self._child is not None:
            self._child.kill()
        return True

    @property
    def pid(self) -> int:
        """The child's pid, 0 before `start`."""
        return self._child.pid if self._child is not None else 0

    @property
    def exit_reason(self) -> str:
        """The child's exit status in words, "" for 0."""
        status = self._child.returncode if self._child is not None else None
        if not status:
            return ""
        if status > 0:
            return f"exit status {status}"
        try:
            return f"killed by {signal.Signals(-status).name}"
        except ValueError:
            return f"killed by signal {-status}"
