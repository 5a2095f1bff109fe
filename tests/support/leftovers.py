"""What a test may not leave behind in this process and around it."""

from __future__ import annotations

import _interpreters
import os
import threading
import time
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Final

from sglang_subgw.contract.segment import NAME_PREFIX

ALLOWED_FDS: Final = {
    "/dev/urandom": "OpenSSL and libzmq keep it open once they used it",
    "/dev/random": "libsodium in pyzmq's wheel keeps it open once it was used",
    "/dev/null": "opened once by subprocess helpers",
}
_PATIENCE_SECONDS: Final = 3.0


@dataclass(frozen=True)
class Snapshot:
    """Everything that is there now."""

    children: frozenset[str]
    threads: frozenset[str]
    zmq_threads: frozenset[str]
    segments: frozenset[str]
    fds: frozenset[str]
    interpreters: frozenset[str]

    @classmethod
    def take(cls) -> Snapshot:
        """Look around."""
        return cls(
            children=frozenset(_children()),
            threads=frozenset(f"{thread.name}/{thread.ident}" for thread in threading.enumerate()),
            zmq_threads=frozenset(_zmq_threads()),
            segments=frozenset(path.name for path in Path("/dev/shm").glob(f"{NAME_PREFIX}{os.getpid()}_*")),
            fds=frozenset(_fds()),
            interpreters=frozenset(str(interpreter) for interpreter in _interpreters.list_all()),
        )

    def since(self, before: Snapshot) -> dict[str, list[str]]:
        """What is there now and was not before."""
        found = {f.name: sorted(getattr(self, f.name) - getattr(before, f.name)) for f in fields(self)}
        return {name: what for name, what in found.items() if what}


def left_since(before: Snapshot, *, but_for_threads: str = "") -> dict[str, list[str]]:
    """What is still there that was not there before, once everything had a moment to end.

    Threads whose name begins with `but_for_threads` don't count.
    """
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while left := _without(Snapshot.take().since(before), but_for_threads):
        if time.monotonic() > deadline:
            break
        time.sleep(0.02)
    return left


def _without(left: dict[str, list[str]], prefix: str) -> dict[str, list[str]]:
    if not prefix:
        return left
    kept = {**left, "threads": [name for name in left.get("threads", ()) if not name.startswith(prefix)]}
    return {kind: names for kind, names in kept.items() if names}


def _of_each_task(name: str) -> list[Path]:
    """A file of every thread; the kernel cuts a listing short when a thread ends meanwhile, so there are several."""
    return sorted({path for _ in range(3) for path in Path("/proc/self/task").glob(f"*/{name}")})


def _children() -> list[str]:
    found = []
    for path in _of_each_task("children"):
        try:
            pids = path.read_text().split()
        except OSError:
            continue
        for pid in pids:
            try:
                command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                command = "?"
            found.append(f"{pid} {command.strip() or 'zombie'}")
    return found


def _zmq_threads() -> list[str]:
    found = []
    for path in _of_each_task("comm"):
        try:
            name = path.read_text().strip()
        except OSError:
            continue
        if name.startswith("ZMQ"):
            found.append(f"{name}/{path.parent.name}")
    return found


def _fds() -> list[str]:
    found = []
    for path in Path("/proc/self/fd").iterdir():
        try:
            target = os.readlink(path)
        except OSError:
            continue
        if target not in ALLOWED_FDS:
            found.append(f"{path.name} -> {target}")
    return found
