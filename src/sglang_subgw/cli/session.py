"""What every command that runs something has in common: logging, signals, what killed ones left behind."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable

from ..contract import sweep_stale
from ..engine import shared_memory
from ..gateway.runtime import stale_dirs, sweep_stale_dirs
from .signals import Interrupted, Signals

log = logging.getLogger("sglang_subgw")


def run(log_level: str, command: Callable[[Signals], int]) -> int:
    """Run a command with its signals; returns its exit status, or 128+n when signal n stopped its start."""
    logging.basicConfig(
        level=log_level.upper(), format="%(asctime)s %(levelname)s gateway: %(message)s", stream=sys.stderr
    )
    with Signals() as signals:
        try:
            for removed in _sweep():
                log.info("Removed what an earlier gateway that was killed left behind: %s", removed)
            return command(signals)
        except Interrupted as exc:
            log.warning("Stopped by %s before it served.", exc)
            return 128 + exc.signum
        finally:
            # The engine that it was attached to may have been killed.
            signals.queue_from_now()
            _sweep()


def _sweep() -> list[str]:
    return [*sweep_stale(), *_sweep_sglang(), *map(str, sweep_stale_dirs())]


def _sweep_sglang() -> list[str]:
    # Before the directories: the notes in them tell which are whose.
    found = shared_memory.stale(stale_dirs())
    for path in found:
        path.unlink(missing_ok=True)
    return [path.name for path in found]
