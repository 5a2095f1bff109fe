"""One gateway of the command line, on its own engine or on another's: start, banner, wait, clean up."""

from __future__ import annotations

import gc
import logging
import os
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from typing import Final

from ..config import GatewayConfig
from ..engine.routes.address import bind_for
from ..errors import ConfigError, EngineDied
from ..gateway import Engine, ShardGateway, listener
from .banner import banner
from .mode import settle
from .progress import Progress
from .signals import FEWER, MORE, RESTART, Signals

log = logging.getLogger("sglang_subgw")

ENGINE_STOPPING: Final = "The engine is being stopped"
"""The event of an engine whose owner waits for this gateway to drain."""

type OpenEngine = Callable[[Callable[[str], None]], AbstractContextManager[Engine]]
"""Starts or finds the engine, given what to call with the name of each phase; leaving the context gives it up."""


def run_gateway(config: GatewayConfig, signals: Signals, open_engine: OpenEngine) -> int:
    """Serve until a signal or the engine's end; returns 0 after a drain, raises the reason of a failure."""
    gateway: ShardGateway | None = None
    try:
        with ExitStack() as stack:
            try:
                choice = settle(config)
                # First, so that a taken port is known before the engine's half minute, not after it.
                sockets = listener.bind_for(config)
                stack.callback(listener.close, sockets)
                if (admin_socket := bind_for(config)) is not None:
                    stack.callback(admin_socket.close)
                with Progress() as progress:
                    engine = stack.enter_context(open_engine(progress.phase))
                    # All that SGLang imported: a full collection would stop the router for as long as it took. Not
                    # what shards make, in mode thread here as well: that goes with them.
                    gc.freeze()
                    progress.phase(f"starting {config.shards} shards in mode {choice.mode}")
                    gateway = ShardGateway(engine, config, sockets=sockets, choice=choice, admin_socket=admin_socket)
                    gateway.on_end = lambda: signals.events.put("ended")
                    # Shards end before the engine: SGLang's shutdown kills every child of this process.
                    stack.callback(gateway.stop)
                    with signals.held(gateway.cancel_start):
                        gateway.start()
                    signals.queue_from_now()
                print(banner(gateway, progress.seconds), flush=True)
                cause = _wait(gateway, signals)
                gateway.raise_failure()
                if cause == ENGINE_STOPPING:
                    raise EngineDied("The engine was stopped by the process that owns it.")
                return 0
            finally:
                signals.queue_from_now()
    finally:
        if gateway is not None and gateway.stuck:
            # Python would wait for ever for a thread whose interpreter does not end.
            log.error("Shards %s did not end; leaving them. %s", gateway.stuck, gateway.failure)
            logging.shutdown()
            os._exit(1)


def _wait(gateway: ShardGateway, signals: Signals) -> str:
    """Until the gateway has ended, by itself or because an event asked for it; returns the first such event."""
    cause = ""
    while (event := signals.wait()) != "ended":
        if cause and event in (RESTART, MORE, FEWER):
            log.warning("%s comes too late: the server is stopping.", event)
        elif event == RESTART:
            log.info("%s: starting the shards again, one by one.", event)
            gateway.restart_shards()
        elif event in (MORE, FEWER):
            _resize(gateway, 1 if event == MORE else -1)
        elif not cause:
            cause = event
            log.info("%s: finishing what runs, for up to %g s.", event, gateway.config.drain_timeout_seconds)
            gateway.begin_drain()
        elif event != ENGINE_STOPPING:
            log.warning("%s again: ending what still runs.", event)
            gateway.begin_drain(0.0)
    return cause


def _resize(gateway: ShardGateway, change: int) -> None:
    try:
        gateway.resize(gateway.config.shards + change)
    except ConfigError as exc:
        log.warning("The number of shards stays: %s", exc)
