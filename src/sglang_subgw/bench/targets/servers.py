"""Other servers as targets: SGLang's own, started here, and whatever runs at a URL."""

from __future__ import annotations

import http.client
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from ...contract import Segment, Word, segment_names
from ...errors import BenchError, ConfigError
from ..system import cpu
from ..system.child import Child, importable
from .base import MAIN, SCHEDULER, SHARDS, ProcessesTarget, Seconds

_READY_SECONDS: Final = 300.0
_LOOK_SECONDS: Final = 0.1
_ANSWER_SECONDS: Final = 30.0
_LISTENING: Final = "0A"


class Stock(ProcessesTarget):
    """SGLang's own server, which stays up between its runs: it takes half a minute to start."""

    def __init__(
        self, settings: dict[str, Any], *, workers: int, rust: bool, log: Path, python: str = sys.executable
    ) -> None:
        """`python` has the SGLang that is meant, and with it what this package needs."""
        version = "" if python == sys.executable else sglang_version(python)
        super().__init__(f"sglang{version}-rust-{workers}" if rust else f"sglang{version}-{workers}")
        self.mode = "sglang-rust" if rust else "sglang"
        self._python = python
        self._rust = rust
        self._settings = settings
        self.shards = self._workers = workers
        self._log = log
        self._child: Child | None = None

    def open(self) -> None:
        if self._child is not None:
            return
        started = time.monotonic()
        self.address = ("127.0.0.1", _free_port())
        settings = {**self._settings, "workers": self._workers, "rust": self._rust, "port": self.address[1]}
        environment = {"TMPDIR": str(self._log.parent), **importable()}
        self._child = Child("targets.stock", settings, log=self._log, python=self._python, environment=environment)
        self.pid = self._child.pid
        _wait_until_healthy(self.address, self._child)
        self.start_seconds = (time.monotonic() - started,)

    def parts(self) -> dict[str, list[int]]:
        found = super().parts()
        if self._workers == 1 and not self._rust:
            # The main process is the only worker, and there is no router.
            found[SHARDS] = found.pop(MAIN)
        return found

    def cpu_seconds(self) -> Seconds:
        seconds = super().cpu_seconds()
        if self._rust:
            # Its threads are the scheduler's process, but for the one that is the scheduler.
            (pid,) = self.parts()[SCHEDULER]
            own = cpu.thread_seconds(pid)[pid]
            seconds[SHARDS], seconds[SCHEDULER] = seconds[SCHEDULER] - own, own
        return seconds

    def close(self) -> None:
        """Leave it up; `end` takes it down."""

    def end(self) -> None:
        """Take it down."""
        if self._child is not None:
            self._child.close()
            self._child = None


def sglang_version(python: str) -> str:
    """The version of the SGLang that a Python has; raises ConfigError for one without it, or what is no Python."""
    ask = "import importlib.metadata as metadata; print(metadata.version('sglang'))"
    try:
        run = subprocess.run([python, "-c", ask], capture_output=True, text=True, timeout=_ANSWER_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as exc:
        raise ConfigError(f"{python} can't be asked for its SGLang: {exc}") from exc
    if run.returncode:
        reason = run.stderr.strip().rpartition("\n")[2]
        raise ConfigError(f"{python} has no SGLang: {reason}", hint="--sglang-python takes a Python that has one.")
    return run.stdout.strip()


class Remote(ProcessesTarget):
    """A server at a URL. On this machine its processes are found, and with them what they use."""

    mode = "url"

    def __init__(self, name: str, url: str) -> None:
        super().__init__(name)
        parts = urlsplit(url)
        if parts.scheme != "http" or not parts.hostname:
            raise ConfigError(f"{url!r} is no address of a server.", hint="For instance http://127.0.0.1:30000.")
        self.address = (parts.hostname, parts.port or 80)
        self.pid = 0

    def open(self) -> None:
        self.model = _first_model(self.address)
        self.pid = _listener(self.address[1]) if self.address[0] in ("127.0.0.1", "localhost", "::1") else 0

    def close(self) -> None:
        """It is another's."""

    def parts(self) -> dict[str, list[int]]:
        return super().parts() if self.pid else {}

    def cpu_seconds(self) -> Seconds:
        seconds = super().cpu_seconds()
        for name, owner in segment_names().items():
            if owner == self.pid:
                _move_shards(name, self.pid, seconds)
        return seconds


def _move_shards(segment_name: str, pid: int, seconds: Seconds) -> None:
    """A gateway of this package: its shards are threads of the main process or processes of its own."""
    with Segment.attach(segment_name) as segment:
        ids = {thread for slot in segment.slots if (thread := slot.get(Word.THREAD_ID))}
    threads = cpu.thread_seconds(pid)
    used = sum(threads[thread] for thread in ids & threads.keys()) + cpu.total(ids - threads.keys())
    seconds[SHARDS] = seconds.get(SHARDS, 0.0) + used
    seconds[MAIN] -= used


def _first_model(address: tuple[str, int]) -> str:
    try:
        connection = http.client.HTTPConnection(*address, timeout=30)
        try:
            connection.request("GET", "/v1/models")
            return str(json.loads(connection.getresponse().read())["data"][0]["id"])
        finally:
            connection.close()
    except (OSError, http.client.HTTPException, ValueError, KeyError, IndexError, TypeError) as exc:
        raise BenchError(f"The server at {address[0]}:{address[1]} names no model at /v1/models: {exc}") from exc


def _listener(port: int) -> int:
    """The first process of this user that listens on the port, 0 if none is found."""
    inodes = set()
    for path in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(path).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == _LISTENING and int(fields[1].rpartition(":")[2], 16) == port:
                inodes.add(f"socket:[{fields[9]}]")
    for pid in sorted(int(name) for name in os.listdir("/proc") if name.isdigit()):
        try:
            if any(os.readlink(f"/proc/{pid}/fd/{fd}") in inodes for fd in os.listdir(f"/proc/{pid}/fd")):
                return pid
        except OSError:
            continue
    return 0


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return int(sock.getsockname()[1])


def _wait_until_healthy(address: tuple[str, int], child: Child) -> None:
    deadline = time.monotonic() + _READY_SECONDS
    while time.monotonic() < deadline:
        child.check()
        connection = http.client.HTTPConnection(*address, timeout=30)
        try:
            connection.request("GET", "/health")
            if connection.getresponse().status == 200:
                return
        except (OSError, http.client.HTTPException):
            time.sleep(_LOOK_SECONDS)
        finally:
            connection.close()
    raise BenchError(f"SGLang's server is not up after {_READY_SECONDS:.0f} s.")
