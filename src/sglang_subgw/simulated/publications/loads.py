"""A simulated engine's load snapshots: a slot per rank in a file, written under a lock as SGLang's schedulers do."""

from __future__ import annotations

import fcntl
import logging
import os
import struct
import time
from pathlib import Path
from typing import Any, Final

from ...contract import LoadFacts, process_start_time
from ..scheduler import Scheduler
from ..wire.pack import pack

log = logging.getLogger("sglang_subgw.engine")

_SLOT_BYTES: Final = 16 * 1024
_SECONDS: Final = 0.02
"""Between two snapshots while there is work: SGLang writes one per step, and its steps take as long."""
_MAX_TOKENS: Final = 1 << 16
_SHM_DIR: Final = Path("/dev/shm")
_PREFIX: Final = "sglang_loads_simulated_"


class LoadPublisher:
    """Keeps the file from `start` to `close`; for the engine's thread."""

    def __init__(self, facts: LoadFacts, ranks: int) -> None:
        self._facts = facts
        self._ranks = max(ranks, 1)
        self._header = struct.Struct(facts.header)
        self._slot_header = struct.Struct(facts.slot_header)
        self._file = -1
        self._next = 0.0
        self._was_idle = False

    def start(self) -> None:
        """Make the file, with an empty snapshot for every rank."""
        facts = self._facts
        sweep_loads()
        self._file = os.open(facts.path, os.O_CREAT | os.O_RDWR | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(self._file, 0, self._header.size + self._ranks * _SLOT_BYTES)
        except OSError as exc:
            # As SGLang's schedulers do.
            log.warning("There will be no load snapshots in %s: %s", facts.path, exc.strerror)
            self.close()
            return
        os.pwrite(
            self._file, self._header.pack(facts.magic.encode("latin-1"), facts.version, self._ranks, _SLOT_BYTES), 0
        )
        for rank in range(self._ranks):
            self.write(rank, {})

    def look(self, scheduler: Scheduler, now: float) -> None:
        """Write down how the scheduler is, if it has become idle or the last snapshots are no longer fresh."""
        if self._file < 0 or (scheduler.idle and self._was_idle):
            return
        if not scheduler.idle and now < self._next:
            return
        self._was_idle = scheduler.idle
        self._next = now + _SECONDS
        for rank in range(self._ranks):
            self.write(rank, _snapshot(scheduler, rank))

    def write(self, rank: int, values: dict[str, Any]) -> None:
        """One rank's snapshot, whatever it says."""
        defaults = dict(self._facts.fields)
        values = {"dp_rank": rank, **values}
        payload = pack({name: value for name, value in values.items() if value != defaults[name]})
        at = self._header.size + rank * _SLOT_BYTES
        fcntl.flock(self._file, fcntl.LOCK_EX)
        try:
            os.pwrite(self._file, self._slot_header.pack(0), at)
            os.pwrite(self._file, payload, at + self._slot_header.size)
            os.pwrite(self._file, self._slot_header.pack(len(payload)), at)
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)

    def close(self) -> None:
        """Remove the file. Safe to call twice."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
            Path(self._facts.path).unlink(missing_ok=True)


def loads_path(engine_id: str) -> Path:
    """Where an engine of this process keeps its load snapshots."""
    return _SHM_DIR / f"{_PREFIX}{os.getpid()}_{engine_id}"


def sweep_loads() -> None:
    """Remove what killed processes left."""
    for path in _SHM_DIR.glob(f"{_PREFIX}*"):
        pid = path.name.removeprefix(_PREFIX).partition("_")[0]
        if process_start_time(int(pid)) is None:
            path.unlink(missing_ok=True)


def _snapshot(scheduler: Scheduler, rank: int) -> dict[str, Any]:
    running = [generation for generation in scheduler.running if (generation.request.routed_dp_rank or 0) == rank]
    waiting = [generation for generation in scheduler.waiting if (generation.request.routed_dp_rank or 0) == rank]
    used = sum(len(generation.prompt) + len(generation.output) for generation in running)
    mode = scheduler.contract.features.disaggregation_mode
    return {
        "timestamp": time.time(),
        "num_running_reqs": len(running),
        "num_waiting_reqs": len(waiting),
        "num_used_tokens": used,
        "num_total_tokens": used + sum(len(generation.prompt) for generation in waiting),
        "max_total_num_tokens": _MAX_TOKENS,
        "token_usage": round(used / _MAX_TOKENS, 4),
        "memory": [0.5, 0.25, 0.0, _MAX_TOKENS],
        "disaggregation": [mode, 0, 0, 0, 0, 0, 0.0, 0.0],
        "queues": [len(waiting), 0, 0, 0, 0],
    }
