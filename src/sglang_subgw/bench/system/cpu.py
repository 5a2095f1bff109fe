"""Processor time of processes and threads, from proc(5)."""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Final

_TICKS_PER_SECOND: Final = os.sysconf("SC_CLK_TCK")


def thread_seconds(pid: int) -> dict[int, float]:
    """Processor seconds of each living thread of a process; empty once it has ended."""
    try:
        threads = [int(name) for name in os.listdir(f"/proc/{pid}/task")]
    except OSError:
        return {}
    read = _exact if _has_schedstat() else _ticks
    return {thread: seconds for thread in threads if (seconds := read(pid, thread)) is not None}


def descendants(pid: int) -> list[int]:
    """The process and all below it, parents first."""
    found = [pid]
    for parent in found:
        for thread in _listing(f"/proc/{parent}/task"):
            try:
                text = Path(f"/proc/{parent}/task/{thread}/children").read_text()
            except OSError:
                continue
            found.extend(map(int, text.split()))
    return found


def title(pid: int) -> str:
    """The command line, or what the process has put in its place; "" once it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""


def total(pids: Iterable[int]) -> float:
    """Processor seconds of all threads of these processes."""
    return sum(sum(thread_seconds(pid).values()) for pid in pids)


@cache
def _has_schedstat() -> bool:
    return _exact(os.getpid(), os.getpid()) is not None


def _exact(pid: int, thread: int) -> float | None:
    """In nanoseconds, where the kernel keeps them."""
    try:
        return int(Path(f"/proc/{pid}/task/{thread}/schedstat").read_bytes().split()[0]) / 1e9
    except (OSError, IndexError):
        return None


def _ticks(pid: int, thread: int) -> float | None:
    try:
        fields = Path(f"/proc/{pid}/task/{thread}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_SECOND


def _listing(path: str) -> list[str]:
    try:
        return os.listdir(path)
    except OSError:
        return []
