"""`python -m sglang_subgw`: bind, start the engine, start the shards, serve until told to stop."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence

from ..contract import sweep_stale
from ..engine.launch import RunningEngine, launch
from ..gateway import Gateway, listener
from ..gateway.runtime import make_runtime_dir, remove_runtime_dir, sweep_stale_dirs
from .banner import banner
from .parser import ServeCommand, parse_serve
from .progress import Progress
from .signals import Interrupted, Signals

log = logging.getLogger("sglang_subgw")


def serve(argv: Sequence[str]) -> int:
    """Serve until a signal; returns the exit status: 0 after a drain, 128+n when the start was stopped."""
    command = parse_serve(argv)
    logging.basicConfig(
        level=command.config.log_level.upper(),
        format="%(asctime)s %(levelname)s gateway: %(message)s",
        stream=sys.stderr,
    )
    with Signals() as signals:
        try:
            return _serve(command, signals)
        except Interrupted as exc:
            log.warning("Stopped by %s before it served.", exc)
            return 128 + exc.signum


def _serve(command: ServeCommand, signals: Signals) -> int:
    for removed in (*sweep_stale(), *sweep_stale_dirs()):
        log.info("Removed what an earlier gateway that was killed left behind: %s", removed)
    # First, so that a taken port is known before the engine's half minute, not after it.
    sockets = listener.bind(command.config.host, command.config.port)
    runtime_dir = make_runtime_dir()
    engine: RunningEngine | None = None
    gateway: Gateway | None = None
    try:
        with Progress() as progress:
            engine = launch(command.engine_argv, runtime_dir=runtime_dir, on_phase=progress.phase)
            progress.phase(f"starting {command.config.shards} shards in mode {command.config.mode}")
            gateway = Gateway(engine, command.config, sockets=sockets)
            gateway.on_end = lambda: signals.events.put("ended")
            gateway.start()
            signals.queue_from_now()
        print(banner(gateway, progress.seconds), flush=True)
        _wait(gateway, signals)
        gateway.raise_failure()
        return 0
    finally:
        signals.queue_from_now()
        stuck = _clean_up(gateway, engine)
        listener.close(sockets)
        remove_runtime_dir(runtime_dir)
        if stuck:
            # Python would wait for ever for a thread whose interpreter does not end.
            log.error("Shards %s did not end; leaving them.", stuck)
            logging.shutdown()
            os._exit(1)


def _wait(gateway: Gateway, signals: Signals) -> None:
    """Until the gateway has ended, by itself or because a signal asked for it."""
    draining = False
    while (event := signals.wait()) != "ended":
        if not draining:
            log.info("%s: finishing what runs, for up to %g s.", event, gateway.config.drain_timeout_seconds)
            gateway.begin_drain()
        else:
            log.warning("%s again: ending what still runs.", event)
            gateway.begin_drain(0.0)
        draining = True


def _clean_up(gateway: Gateway | None, engine: RunningEngine | None) -> list[int]:
    """Shards before the engine: SGLang's shutdown kills every child of this process."""
    stuck: list[int] = []
    try:
        if gateway is not None:
            gateway.stop()
            stuck = gateway.stuck
    finally:
        if engine is not None:
            engine.shutdown()
    return stuck
