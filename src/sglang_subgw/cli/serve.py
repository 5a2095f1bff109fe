"""`python -m sglang_subgw [serve]`: an engine of one's own, with a gateway or, `--engine-only`, for others' gateways."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from ..engine import seats
from ..engine.launch import RunningEngine, launch
from ..engine.published import PublishedEngine
from ..errors import EngineDied
from ..gateway.runtime import make_runtime_dir, remove_runtime_dir
from .banner import engine_banner
from .parser import ServeCommand, parse_serve
from .progress import Progress
from .serving import run_gateway
from .session import run
from .signals import Signals

log = logging.getLogger("sglang_subgw")

_LOOK_SECONDS = 0.1


def serve(argv: Sequence[str]) -> int:
    """Serve until a signal; returns the exit status: 0 after a drain, 128+n when the start was stopped."""
    command = parse_serve(argv)
    return run(command.config.log_level, partial(_engine_only if command.engine_only else _with_gateway, command))


def _with_gateway(command: ServeCommand, signals: Signals) -> int:
    return run_gateway(command.config, signals, partial(_launched, command, signals))


def _engine_only(command: ServeCommand, signals: Signals) -> int:
    try:
        with Progress() as progress:
            engines = _launched(command, signals, progress.phase)
            engine = engines.__enter__()
    finally:
        signals.queue_from_now()
    raise NotImplementedError


@contextmanager
def _launched(
    command: ServeCommand, signals: Signals, on_phase: Callable[[str], None]
) -> Iterator[RunningEngine]:
    """An engine of this process; after a clean end, gateways that others attached to it may leave first."""
    runtime_dir = make_runtime_dir()
    try:
        with launch(command.engine_argv, runtime_dir=runtime_dir, on_phase=on_phase) as engine:
            yield engine
    finally:
        remove_runtime_dir(runtime_dir)
