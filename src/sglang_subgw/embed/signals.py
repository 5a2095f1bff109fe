"""The signals of a program that leaves them to its gateway: `handle_signals=True`."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, Final

from ..engine.launch.wrapped import WrappedEngine
from ..errors import ConfigError
from .started import StartedGateway

log = logging.getLogger("sglang_subgw.gateway")

_DRAIN: Final = (signal.SIGTERM, signal.SIGINT)
_RESIZE: Final = {signal.SIGTTIN: 1, signal.SIGTTOU: -1}
_HANDLED: Final = (*_DRAIN, signal.SIGUSR1, *_RESIZE, signal.SIGQUIT)


class SignalHandlers:
    """As of the command line, from `install` to `restore`; what the gateway has no use for goes to who had it before.

    SIGTERM and SIGINT drain, and don't wait any longer the second time; USR1, TTIN and TTOU restart the shards, add
    one, take one away. SIGQUIT tells of a crash in an Engine that was wrapped: SGLang's own handler would end this
    process before any client has heard of it.
    """

    def __init__(self, gateway: StartedGateway, begin_drain: Callable[[float | None], None]) -> None:
        self._gateway = gateway
        self._begin_drain = begin_drain
        self._before: dict[signal.Signals, Any] = {}
        self._draining = False

    def install(self) -> None:
        """Take them over; raises ConfigError off the main thread, where Python lets nobody do that."""
        if not _is_main_thread():
            raise ConfigError(
                "handle_signals=True works in the main thread only.",
                hint="Without it a gateway starts in any thread, and leaves all signals alone.",
            )
        self._before = {signum: signal.signal(signum, self._on_signal) for signum in _HANDLED}

    def restore(self) -> None:
        """Give them back. Safe to call twice, and in any thread: off the main one they go on to who had them before."""
        if not _is_main_thread():
            return
        for signum, before in self._before.items():
            # None was not set from Python, and can't be.
            if signal.getsignal(signum) == self._on_signal and before is not None:
                signal.signal(signum, before)
        self._before.clear()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        signum = signal.Signals(number)
        if self._gateway.has_ended or not self._use(signum):
            signal.signal(signum, self._before.get(signum) or signal.SIG_DFL)
            signal.raise_signal(signum)

    def _use(self, signum: signal.Signals) -> bool:
        gateway = self._gateway
        if signum in _DRAIN:
            log.info("%s: %s.", signum.name, "ending what still runs" if self._draining else "finishing what runs")
            self._begin_drain(0.0 if self._draining else None)
            self._draining = True
        elif signum == signal.SIGQUIT:
            if not gateway.serves or not isinstance(gateway.engine, WrappedEngine):
                return False
            gateway.engine.crashed()
        elif not gateway.serves:
            log.warning("%s: there are no shards yet.", signum.name)
        elif signum == signal.SIGUSR1:
            gateway.restart_shards()
        else:
            try:
                gateway.resize(gateway.config.shards + _RESIZE[signum])
            except ConfigError as exc:
                log.warning("The number of shards stays: %s", exc)
        return True


def _is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
