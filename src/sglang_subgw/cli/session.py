"""What every command that runs something has in common: logging, signals, what killed ones left behind."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable

from ..gateway.leftovers import sweep
from .signals import Interrupted, Signals

log = logging.getLogger("sglang_subgw")


def run(log_level: str, command: Callable[[Signals], int]) -> int:
    """Run a command with its signals; returns its exit status, or 128+n when signal n stopped its start."""
    logging.basicConfig(
        level=log_level.upper(), format="%(asctime)s %(levelname)s gateway: %(message)s", stream=sys.stderr
    )
    with Signals() as signals:
        try:
            for removed in sweep():
                log.info("Removed what an earlier gateway that was killed left behind: %s", removed)
            return command(signals)
        except Interrupted as exc:
            log.warning("Stopped by %s before it served.", exc)
            return 128 + exc.signum
        finally:
            # The engine that it was attached to may have been killed.
            signals.queue_from_now()
            sweep()
