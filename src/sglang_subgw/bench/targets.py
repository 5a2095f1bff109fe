"""What is measured: gateways, SGLang's own server, bare writers. Each knows its processes and threads by part."""

from __future__ import annotations

import http.client
import socket
import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, Final

from ..contract import Segment, Word
from ..errors import BenchError
from . import cpu
from .child import Child
from .memory import Memory, memory_of

SHARDS: Final = "shards"
MAIN: Final = "main"
DETOKENIZER: Final = "detokenizer"
SCHEDULER: Final = "scheduler"
_READY_SECONDS: Final = 180.0
_LOOK_SECONDS: Final = 0.1

type Seconds = dict[str, float]


class Target(ABC):
    """One variant, up while it is measured."""

    address: tuple[str, int]
    model = "default"
    start_seconds: tuple[float, ...] = ()
    """Of each shard or worker, until it was ready."""

    def __init__(self, name: str) -> None:
        self.name = name

    @abstractmethod
    def open(self) -> None:
        """Bring it up."""

    @abstractmethod
    def close(self) -> None:
        """Take it down. Safe to call twice."""

    @abstractmethod
    def cpu_seconds(self) -> Seconds:
        """Processor time by part, since each part started."""

    @abstractmethod
    def memory(self) -> dict[str, Memory]:
        """By part."""

    def balance(self) -> list[int]:
        """What each shard has answered so far; nothing where that isn't known."""
        return []


class Processes(Target):
    """A target whose parts are whole processes, known by their titles."""

    pid: int

    def parts(self) -> dict[str, list[int]]:
        """The processes of each part."""
        found: dict[str, list[int]] = {}
        for pid in cpu.descendants(self.pid):
            found.setdefault(_part(cpu.title(pid)), []).append(pid)
        return found

    def cpu_seconds(self) -> Seconds:
        return {part: cpu.total(pids) for part, pids in self.parts().items()}

    def memory(self) -> dict[str, Memory]:
        return {part: memory_of(pids) for part, pids in self.parts().items()}


def _part(title: str) -> str:
    if "sglang::tokenizer_worker" in title:
        return SHARDS
    if "sglang::detokenizer" in title:
        return DETOKENIZER
    return SCHEDULER if "sglang::scheduler" in title else MAIN


class Stock(Processes):
    """SGLang's own server, which stays up between its runs: it takes half a minute to start."""

    def __init__(self, name: str, settings: dict[str, Any], *, workers: int, log: Path) -> None:
        super().__init__(name)
        self._settings = settings
        self._workers = workers
        self._log = log
        self._child: Child | None = None

    def open(self) -> None:
        if self._child is not None:
            return
        started = time.monotonic()
        self.address = ("127.0.0.1", _free_port())
        settings = {**self._settings, "workers": self._workers, "port": self.address[1]}
        self._child = Child("stock", settings, log=self._log, environment={"TMPDIR": str(self._log.parent)})
        self.pid = self._child.pid
        _wait_until_healthy(self.address, self._child)
        self.start_seconds = (time.monotonic() - started,)

    def parts(self) -> dict[str, list[int]]:
        found = super().parts()
        if self._workers == 1:
            # The main process is the only worker, and there is no router.
            found[SHARDS] = found.pop(MAIN)
        return found

    def close(self) -> None:
        """Leave it up; `end` takes it down."""

    def end(self) -> None:
        """Take it down."""
        if self._child is not None:
            self._child.close()
            self._child = None


class GatewayHost:
    """The process that owns the engine, with one gateway at a time."""

    def __init__(self, settings: dict[str, Any], *, log: Path) -> None:
        self._settings = settings
        self._log = log
        self._child: Child | None = None
        self.model = ""
        self.seconds = 0.0
        """Until the engine was up."""

    def start(self, on_phase: Any) -> None:
        """Bring the engine up."""
        started = time.monotonic()
        self._child = Child("host", self._settings, log=self._log)
        while "phase" in (message := self._child.hear()):
            on_phase(message["phase"])
        self.model = message["model"]
        self.seconds = time.monotonic() - started

    @property
    def pid(self) -> int:
        """Its process."""
        assert self._child is not None
        return self._child.pid

    def ask(self, **message: Any) -> dict[str, Any]:
        """One message, one answer."""
        assert self._child is not None
        return self._child.ask(**message)

    def close(self) -> None:
        """End the gateway and the engine. Safe to call twice."""
        if self._child is not None:
            self._child.close()
            self._child = None


class GatewayTarget(Target):
    """This gateway, in one mode with so many shards."""

    def __init__(self, name: str, host: GatewayHost, config: dict[str, Any]) -> None:
        super().__init__(name)
        self._host = host
        self._config = config
        self._segment: Segment | None = None
        self._memory_before = Memory()

    def open(self) -> None:
        self._memory_before = memory_of([self._host.pid])
        opened = self._host.ask(do="open", config=self._config)
        self.address = tuple(opened["address"])
        self.model = self._host.model
        self.start_seconds = tuple(opened["start_seconds"])
        self._in_process = opened["mode"] != "process"
        self._shards: list[int] = opened["shards"]
        self._slots: list[int] = opened["slots"]
        self._main_threads = set(opened["main_threads"])
        self._segment = Segment.attach(opened["segment"])
        self._engine = {
            part: [pid for pid in cpu.descendants(self._host.pid) if _part(cpu.title(pid)) == part]
            for part in (DETOKENIZER, SCHEDULER)
        }

    def close(self) -> None:
        if self._segment is not None:
            self._segment.close()
            self._segment = None
            self._host.ask(do="close")

    def cpu_seconds(self) -> Seconds:
        own = cpu.thread_seconds(self._host.pid)
        seconds = {part: cpu.total(pids) for part, pids in self._engine.items()}
        if self._in_process:
            seconds[MAIN] = sum(used for thread, used in own.items() if thread in self._main_threads)
            seconds[SHARDS] = sum(own.values()) - seconds[MAIN]
        else:
            seconds[MAIN] = sum(own.values())
            seconds[SHARDS] = cpu.total(self._shards)
        return seconds

    def memory(self) -> dict[str, Memory]:
        main = memory_of([self._host.pid])
        parts = {part: memory_of(pids) for part, pids in self._engine.items()}
        if self._in_process:
            # What the process has grown by since before the gateway.
            parts[SHARDS], parts[MAIN] = main - self._memory_before, self._memory_before
        else:
            parts[SHARDS], parts[MAIN] = memory_of(self._shards), main
        return parts

    def balance(self) -> list[int]:
        assert self._segment is not None
        return [self._segment.slots[i].get(Word.CHUNKS) for i in self._slots]


class Floor(Target):
    """A bare writer."""

    def __init__(self, name: str, writer: str, *, pace: str, log: Path) -> None:
        super().__init__(name)
        self._settings = {"writer": writer, "pace": pace}
        self._log = log
        self._child: Child | None = None
        self.event = ""
        """What it writes; set before `open`."""

    def open(self) -> None:
        self._child = Child("floor", {**self._settings, "event": self.event}, log=self._log)
        host, port = self._child.hear()["address"]
        self.address = (host, port)

    def close(self) -> None:
        if self._child is not None:
            self._child.close()
            self._child = None

    def cpu_seconds(self) -> Seconds:
        assert self._child is not None
        return {SHARDS: cpu.total([self._child.pid])}

    def memory(self) -> dict[str, Memory]:
        assert self._child is not None
        return {SHARDS: memory_of([self._child.pid])}


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
