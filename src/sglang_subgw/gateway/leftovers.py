"""What gateways and engines of this user that were killed left behind, removed by the next start."""

from __future__ import annotations

from ..contract import sweep_stale
from ..engine.launch import shared_memory
from .runtime import stale_dirs, sweep_stale_dirs


def sweep() -> list[str]:
    """Remove segments, SGLang's shared memory and directories whose owners are gone; returns their names."""
    return [*sweep_stale(), *_sweep_sglang(), *map(str, sweep_stale_dirs())]


def _sweep_sglang() -> list[str]:
    # Before the directories: the notes in them tell which are whose.
    found = shared_memory.stale(stale_dirs())
    for path in found:
        path.unlink(missing_ok=True)
    return [path.name for path in found]
