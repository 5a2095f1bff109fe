"""One run: load on one target, and what its parts used meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from ..errors import BenchError
from .load.histogram import Histogram
from .load.workload import Group, Workload
from .system import cpu
from .system.child import Child
from .system.memory import ProcessMemory
from .targets.base import Target

LOAD: Final = "load"


@dataclass(slots=True)
class GroupResult:
    """What the clients of one group saw."""

    events: int = 0
    reads: int = 0
    bytes: int = 0
    requests: int = 0
    errors: int = 0
    said: list[str] = field(default_factory=list)
    first: Histogram = field(default_factory=Histogram)
    gaps: Histogram = field(default_factory=Histogram)
    late: Histogram = field(default_factory=Histogram)
    """How much longer a gap was than the engine takes from one event of a stream to the next."""
    latencies: Histogram = field(default_factory=Histogram)

    def add(self, seen: dict[str, Any]) -> None:
        """Take in what one load generator tells."""
        for name in ("events", "reads", "bytes", "requests", "errors"):
            setattr(self, name, getattr(self, name) + seen[name])
        self.said += seen["said"]
        for name in ("first", "gaps", "late", "latencies"):
            getattr(self, name).add(Histogram.from_json(seen[name]))


@dataclass(slots=True)
class Run:
    """What one run showed."""

    target: str
    seconds: float
    groups: dict[str, GroupResult]
    cpu: dict[str, float]
    """Processor seconds by part, of this run alone."""
    memory: dict[str, ProcessMemory]
    balance: list[int]
    start_seconds: tuple[float, ...]
    memory_idle: dict[str, ProcessMemory] = field(default_factory=dict)
    """Before the load."""
    connections: int = 0


def measure(
    target: Target, workload: Workload, prompt: Callable[[Group], str], *, log_dir: Path, generators: int = 1
) -> Run:
    """Open the target, put the load on, measure for a while, close; raises BenchError when nothing is answered."""
    target.open()
    loads: list[Child] = []
    try:
        idle = target.memory()
        for number, share in enumerate(workload.split(generators)):
            settings = share.to_load(target.address, target.model, prompt)
            loads.append(Child("load.process", settings, log=log_dir / f"load-{number}.log"))
        for load in loads:
            load.hear()
        time.sleep(workload.warm_seconds)
        run = _window(target, workload, loads)
        run.memory_idle = idle
    finally:
        for load in loads:
            load.close()
        target.close()
    for group in workload.groups:
        seen = run.groups[group.name]
        # A server that stands still for so long is a result.
        if seen.said and not (group.background or seen.events or seen.requests):
            raise BenchError(f"{target.name} answered no request of {group.name}: {seen.said[0]}")
    return run


def _window(target: Target, workload: Workload, loads: list[Child]) -> Run:
    pids = [load.pid for load in loads]
    balance = target.balance()
    for load in loads:
        load.ask(do="begin")
    before = {**target.cpu_seconds(), LOAD: cpu.total(pids)}
    started = time.monotonic()
    time.sleep(workload.seconds)
    after = {**target.cpu_seconds(), LOAD: cpu.total(pids)}
    seconds = time.monotonic() - started
    groups = {group.name: GroupResult() for group in workload.groups}
    for answer in [load.ask(do="end") for load in loads]:
        for name, seen in answer["groups"].items():
            groups[name].add(seen)
    return Run(
        target=target.name,
        seconds=seconds,
        groups=groups,
        cpu={part: used - before.get(part, 0.0) for part, used in after.items()},
        memory=target.memory(),
        balance=[now - then for now, then in zip(target.balance(), balance, strict=True)],
        start_seconds=target.start_seconds,
        connections=workload.connections,
    )
