"""Memory of processes, from proc(5)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class ProcessMemory:
    """Bytes: resident; resident with shared pages divided among those who share them; private."""

    rss: int = 0
    pss: int = 0
    uss: int = 0

    def __add__(self, other: ProcessMemory) -> ProcessMemory:
        return ProcessMemory(self.rss + other.rss, self.pss + other.pss, self.uss + other.uss)

    def __sub__(self, other: ProcessMemory) -> ProcessMemory:
        return ProcessMemory(self.rss - other.rss, self.pss - other.pss, self.uss - other.uss)


def memory_of(pids: Iterable[int]) -> ProcessMemory:
    """The sum over these processes; what has ended has none."""
    return sum((_one(pid) for pid in pids), ProcessMemory())


def _one(pid: int) -> ProcessMemory:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    except OSError:
        return ProcessMemory()
    sizes = {name: int(rest.split()[0]) * 1024 for name, _, rest in (line.partition(":") for line in lines)}
    return ProcessMemory(sizes["Rss"], sizes["Pss"], sizes["Private_Clean"] + sizes["Private_Dirty"])
