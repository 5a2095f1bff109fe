"""Limits of the machine that a gateway runs into under load."""

from __future__ import annotations

import resource
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_FEW_FILES: Final = 1024
_FILES_WANTED: Final = 4096
_FEW_SHARED_BYTES: Final = 32 * 2**20
_BACKLOG: Final = 2048


@dataclass(frozen=True, slots=True)
class Limit:
    """One limit, and what is the matter with it."""

    name: str
    values: dict[str, int]
    problem: str = ""
    note: str = ""


def limits() -> list[Limit]:
    """Open files, shared memory, length of the accept queue."""
    return [_open_files(), _shared_memory(), _accept_queue()]


def _open_files() -> Limit:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    problem = note = ""
    if 0 <= soft < _FEW_FILES:
        problem = f"only {soft} open files: about {soft // 2} connections at a time. Raise it with ulimit -n."
    elif 0 <= soft < _FILES_WANTED:
        note = f"for more than about {soft - 256} connections at a time raise it with ulimit -n"
    return Limit("open files", {"soft": soft, "hard": hard}, problem, note)


def _shared_memory() -> Limit:
    try:
        usage = shutil.disk_usage("/dev/shm")
    except OSError as exc:
        return Limit("shared memory", {}, f"/dev/shm can't be used: {exc.strerror}.")
    problem = ""
    if usage.free < _FEW_SHARED_BYTES:
        problem = f"only {usage.free} bytes are free in /dev/shm. Free some, or give the container more (--shm-size)."
    return Limit("shared memory", {"size": usage.total, "free": usage.free}, problem)


def _accept_queue() -> Limit:
    try:
        value = int(Path("/proc/sys/net/core/somaxconn").read_text())
    except (OSError, ValueError):
        return Limit("accept queue", {}, note="net.core.somaxconn can't be read")
    note = f"net.core.somaxconn cuts the gateway's backlog of {_BACKLOG}" if value < _BACKLOG else ""
    return Limit("accept queue", {"somaxconn": value}, note=note)
