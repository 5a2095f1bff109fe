"""What is measured: each target knows its processes and threads by part."""

from __future__ import annotations

from abc import ABC, abstractmethod
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from ..system import cpu
from ..system.child import Child
from ..system.memory import ProcessMemory, memory_of

SHARDS: Final = "shards"
MAIN: Final = "main"
DETOKENIZER: Final = "detokenizer"
SCHEDULER: Final = "scheduler"
ENGINE: Final = "engine"
"""A wire engine, which is all of SGLang's processes at once."""

type Seconds = dict[str, float]


class Target(ABC):
    """One variant, up while it is measured."""

    mode = ""
    shards = 1
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
    def memory(self) -> dict[str, ProcessMemory]:
        """By part."""

    def balance(self) -> list[int]:
        """What each shard has answered so far; nothing where that isn't known."""
        return []


class ProcessesTarget(Target):
    """A target whose parts are whole processes, known by their titles."""

    pid: int

    def parts(self) -> dict[str, list[int]]:
        """The processes of each part."""
        found: dict[str, list[int]] = {}
        for pid in cpu.descendants(self.pid):
            found.setdefault(part_of(cpu.title(pid)), []).append(pid)
        return found

    def cpu_seconds(self) -> Seconds:
        return {part: cpu.total(pids) for part, pids in self.parts().items()}

    def memory(self) -> dict[str, ProcessMemory]:
        return {part: memory_of(pids) for part, pids in self.parts().items()}


def part_of(title: str) -> str:
    """Which part of a server a process with this title is."""
    if "sglang::tokenizer_worker" in title:
        return SHARDS
    if "sglang::detokenizer" in title:
        return DETOKENIZER
    return SCHEDULER if "sglang::scheduler" in title else MAIN


def writers() -> list[str]:
    """The bare writers that this Python has."""
    return ["send", "uvloop"] if find_spec("uvloop") else ["send"]


class Floor(Target):
    """A bare writer."""

    mode = "floor"

    def __init__(self, name: str, writer: str, event: str, *, pace: str, log: Path) -> None:
        super().__init__(name)
        self._settings = {"writer": writer, "event": event, "pace": pace}
        self._log = log
        self._child: Child | None = None

    def open(self) -> None:
        self._child = Child("targets.floor", self._settings, log=self._log)
        host, port = self._child.hear()["address"]
        self.address = (host, port)

    def close(self) -> None:
        if self._child is not None:
            self._child.close()
            self._child = None

    def cpu_seconds(self) -> Seconds:
        assert self._child is not None
        return {SHARDS: cpu.total([self._child.pid])}

    def memory(self) -> dict[str, ProcessMemory]:
        assert self._child is not None
        return {SHARDS: memory_of([self._child.pid])}
