"""The simulated engine in a process of its own: for tests that kill it, and for benchmarks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from ..contract import EngineContract, sweep_stale
from ..coordination.bootstrap_rooms import ROOMS_NAME
from ..coordination.client import SOCKET_NAME as COORDINATOR
from ..tokenization.server import SOCKET_NAME
from .publications.loads import sweep_loads


class SimulatedEngineProcess:
    """Start, watch and end such a process; has what a Gateway needs of a running engine."""

    def __init__(self, runtime_dir: str | Path, *arguments: str) -> None:
        self._command = [sys.executable, "-m", __package__, "--runtime-dir", str(runtime_dir), *arguments]
        self._on_death: list[Callable[[str], object]] = []
        self._stopping = False
        self.engine: Any = None
        self.child_pids: tuple[int, ...] = ()
        self.segment = ""
        """The name to attach to it by; its pid does as well."""

    def start(self) -> Self:
        """Start it and read its contract."""
        self._process = subprocess.Popen(self._command, stdout=subprocess.PIPE, text=True)
        self.child_pids = (self._process.pid,)
        assert self._process.stdout is not None
        path, _, self.segment = self._process.stdout.readline().strip().rpartition(" ")
        if not path:
            self._process.stdout.close()
            raise RuntimeError(f"The simulated engine ended at its start, exit code {self._process.wait()}.")
        self.contract = EngineContract.from_json(Path(path).read_bytes())
        self._watcher = threading.Thread(target=self._watch, name="simulated-engine-watch")
        self._watcher.start()
        return self

    def on_death(self, callback: Callable[[str], object]) -> None:
        """Call back with the reason, from a thread, should the process end by itself."""
        self._on_death.append(callback)

    def router_alive(self) -> bool:
        """Whether the process lives."""
        return self._process.poll() is None

    @property
    def pid(self) -> int:
        """Its process."""
        return self._process.pid

    def kill(self) -> None:
        """End it as the out-of-memory killer would."""
        os.kill(self._process.pid, signal.SIGKILL)

    def shutdown(self) -> None:
        """Stop it and reap it; the same as `stop`."""
        self.stop()

    def stop(self) -> None:
        """Stop it and reap it. Safe to call twice."""
        self._stopping = True
        if self._process.poll() is None:
            self._process.terminate()
        self._watcher.join()
        if self._process.stdout is not None:
            self._process.stdout.close()
        runtime_dir = Path(self.contract.wire.runtime_dir)
        for name in ("contract.json", "tokenizer.json", "router", SOCKET_NAME, COORDINATOR, ROOMS_NAME):
            (runtime_dir / name).unlink(missing_ok=True)
        sweep_loads()
        sweep_stale()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def _watch(self) -> None:
        code = self._process.wait()
        if not self._stopping:
            for callback in self._on_death:
                callback(f"process {self._process.pid} of the simulated engine ended with exit code {code}")
