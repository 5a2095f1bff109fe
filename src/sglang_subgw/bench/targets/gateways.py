"""Gateways as targets, and the process that hosts them."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ...contract import Segment, Word
from ..system import cpu
from ..system.child import Child, importable
from ..system.memory import ProcessMemory, memory_of
from .base import DETOKENIZER, ENGINE, MAIN, SCHEDULER, SHARDS, Seconds, Target, part_of


class GatewayHost:
    """The process that owns the engine, with one gateway at a time."""

    def __init__(self, settings: dict[str, Any], *, log: Path, python: str = sys.executable) -> None:
        self._settings = settings
        self._log = log
        self._python = python
        self._child: Child | None = None
        self._wire: Child | None = None
        self.on_wire = settings["engine"] == "wire"
        self.model = ""
        self.python = ""
        """The version of the Python that runs the gateways."""
        self.seconds = 0.0
        """Until the engine was up."""

    def start(self, on_phase: Callable[[str], None]) -> None:
        """Bring the engine up."""
        started = time.monotonic()
        settings = self._settings
        if settings["engine"] == "wire":
            self._wire = Child("wire_engine.engine", settings, log=self._log)
            settings = {"engine": "attached", "target": self._wire.hear()["segment"]}
        self._child = Child("targets.host", settings, log=self._log, python=self._python, environment=importable())
        while "phase" in (message := self._child.hear()):
            on_phase(message["phase"])
        self.model = message["model"]
        self.python = message["python"]
        self.seconds = time.monotonic() - started

    @property
    def engine(self) -> dict[str, list[int]]:
        """The engine's own processes, by part; ask once a request was answered: before, one may have no title yet."""
        if self._wire is not None:
            return {ENGINE: [self._wire.pid]}
        pids = cpu.descendants(self.pid)
        return {part: [pid for pid in pids if part_of(cpu.title(pid)) == part] for part in (DETOKENIZER, SCHEDULER)}

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
        for child in (self._child, self._wire):
            if child is not None:
                child.close()
        self._child = self._wire = None


class GatewayTarget(Target):
    """This gateway, in one mode with so many shards."""

    def __init__(self, name: str, host: GatewayHost, config: dict[str, Any]) -> None:
        super().__init__(name)
        self.mode, self.shards = config["mode"], config["shards"]
        self._host = host
        self._config = config
        self._segment: Segment | None = None
        self._memory_before = ProcessMemory()
        self.on_wire = host.on_wire
        """Whether there is no sglang behind it."""

    def open(self) -> None:
        self._memory_before = memory_of([self._host.pid])
        opened = self._host.ask(do="open", config=self._config)
        self.address = tuple(opened["address"])
        self.model = self._host.model
        self.start_seconds = tuple(opened["start_seconds"])
        self._in_process = opened["mode"] != "process"
        self._shard_ids: list[int] = opened["shards"]
        self._slots: list[int] = opened["slots"]
        self._engine = self._host.engine
        self._main_threads = set(opened["main_threads"])
        self._segment = Segment.attach(opened["segment"])

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
            seconds[SHARDS] = cpu.total(self._shard_ids)
        return seconds

    def memory(self) -> dict[str, ProcessMemory]:
        main = memory_of([self._host.pid])
        parts = {part: memory_of(pids) for part, pids in self._engine.items()}
        if self._in_process:
            # What the process has grown by since before the gateway.
            parts[SHARDS], parts[MAIN] = main - self._memory_before, self._memory_before
        else:
            parts[SHARDS], parts[MAIN] = memory_of(self._shard_ids), main
        return parts

    def balance(self) -> list[int]:
        assert self._segment is not None
        return [self._segment.slots[i].get(Word.CHUNKS) for i in self._slots]
