"""`python -m sglang_subgw [serve]`: an engine of its own, with a gateway or, `--engine-only`, for those of others."""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from ..contract import EngineContract
from ..engine.attach import seats
from ..engine.attach.published import PublishedEngine
from ..engine.launch.launch import RunningEngine, launch
from ..engine.routes.address import bind_for
from ..engine.routes.start import start_admin
from ..errors import EngineDied
from ..gateway.runtime import runtime_dir
from .banner import engine_banner
from .parser import ServeCommand, parse_serve
from .progress import Progress
from .run_gateway import run_gateway
from .session import run
from .signals import RESTART, Signals

log = logging.getLogger("sglang_subgw")

_LOOK_SECONDS = 0.1


def serve(argv: Sequence[str]) -> int:
    """Serve until a signal; returns the exit status: 0 after a drain, 128+n when the start was stopped."""
    command = parse_serve(argv)
    return run(command.config.log_level, partial(_engine_only if command.engine_only else _with_gateway, command))


def _with_gateway(command: ServeCommand, signals: Signals) -> int:
    return run_gateway(command.config, signals, partial(_shared_engine, command, signals))


def _engine_only(command: ServeCommand, signals: Signals) -> int:
    with ExitStack() as stack:
        try:
            with Progress() as progress:
                if (admin_socket := bind_for(command.config)) is not None:
                    stack.callback(admin_socket.close)
                engine = stack.enter_context(_launched(command, progress.phase))
                directory = Path(engine.contract.wire.runtime_dir)
                if (admin := start_admin(command.config, engine, admin_socket, directory)) is not None:
                    stack.callback(admin.close)
                published = stack.enter_context(PublishedEngine(engine))
                engine.on_death(lambda _: signals.events.put("ended"))
                signals.queue_from_now()
            gc.freeze()
            print(
                engine_banner(engine.contract, published.name, progress.seconds, admin.url if admin else ""), flush=True
            )
            while (event := signals.wait()) == RESTART:
                log.info("%s: there are no shards here to start again.", event)
            if not published.failure:
                log.info("%s: no gateway can attach any more.", event)
                published.draining()
                _wait_for_gateways(command, engine.contract, signals)
            if published.failure:
                raise EngineDied(published.failure)
            return 0
        finally:
            signals.queue_from_now()


@contextmanager
def _shared_engine(command: ServeCommand, signals: Signals, on_phase: Callable[[str], None]) -> Iterator[RunningEngine]:
    """An engine that gateways in other processes may have attached to, beside the one here."""
    with _launched(command, on_phase) as engine:
        yield engine
        # The gateway here has drained; those saw when it began to.
        engine.on_death(lambda _: signals.events.put("ended"))
        _wait_for_gateways(command, engine.contract, signals)


@contextmanager
def _launched(command: ServeCommand, on_phase: Callable[[str], None]) -> Iterator[RunningEngine]:
    with runtime_dir() as path, launch(command.engine_argv, runtime_dir=path, on_phase=on_phase) as engine:
        yield engine


def _wait_for_gateways(command: ServeCommand, contract: EngineContract, signals: Signals) -> None:
    """Until attached gateways have drained and left, for as long as a drain may take or until a second signal."""
    deadline = time.monotonic() + command.config.drain_timeout_seconds
    told = False
    while (count := seats.taken(contract)) and signals.count < 2 and time.monotonic() < deadline:
        if not told:
            told = True
            log.info("Waiting for attached gateways to drain and leave: %d.", count)
        if signals.wait(_LOOK_SECONDS) not in ("", RESTART):
            return
