"""Mode subinterp: a shard in an interpreter with its own GIL, in a thread of this process."""

from __future__ import annotations

import dataclasses
import os
import sys
import threading
import time
import warnings
from typing import Any

from ..channel import Channel
from ..shard.spec import ShardSpec
from . import images, interpreters

_BOOTSTRAP = """
import sys
sys.path[:] = {path!r}
from sglang_subgw.modes import images
images.install({packages!r}, {copies_dir!r})
try:
    from sglang_subgw.shard.entry import main
    main({spec!r})
finally:
    images.release()
"""


class SubinterpHost:
    """One interpreter, alive in one dedicated thread from start to end."""

    def __init__(self, spec: ShardSpec, *, scratch_dir: str) -> None:
        self.channel, self._shard_end = Channel.pair()
        self._packages = images.select(spec.config.images)
        self._scratch_dir = scratch_dir
        self._spec = spec
        self._exit_reason = ""
        self._thread = threading.Thread(target=self._run, name=f"shard-{spec.index}")

    def start(self) -> None:
        """Start the thread that creates and runs the interpreter."""
        interpreters.preload()
        self._spec = dataclasses.replace(
            self._spec, channel_fd=self._shard_end.fileno(), created_ns=time.monotonic_ns()
        )
        self._thread.start()

    def join(self, timeout: float) -> bool:
        """Wait for the thread's end."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def kill(self) -> bool:
        """An interpreter can't be ended by force: always False."""
        return False

    @property
    def pid(self) -> int:
        """This process."""
        return os.getpid()

    @property
    def exit_reason(self) -> str:
        """The error that left the interpreter, "" for a clean end."""
        return self._exit_reason

    def _run(self) -> None:
        interpreter: Any = None
        try:
            interpreter = interpreters.create()
            interpreter.exec(
                _BOOTSTRAP.format(
                    path=list(sys.path),
                    packages=self._packages,
                    copies_dir=self._scratch_dir,
                    spec=self._spec.to_json(),
                )
            )
        except interpreters.ExecutionFailed as exc:
            self._exit_reason = str(exc).strip() or type(exc).__name__
        except BaseException as exc:
            self._exit_reason = f"{type(exc).__name__}: {exc}"
        finally:
            if interpreter is not None:
                self._close(interpreter)
            self._shard_end.close()

    def _close(self, interpreter: Any) -> None:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                interpreter.close()
        except Exception as exc:
            self._exit_reason = self._exit_reason or f"the interpreter could not be closed: {exc}"
