"""`Gateway`: shards in a program of one's own, around an engine that is made, wrapped or attached to."""

from __future__ import annotations

import dataclasses
import logging
import math
import threading
import time
from asyncio import CancelledError
from concurrent.futures import Future, InvalidStateError
from contextlib import ExitStack, suppress
from typing import Any, Self

from ..config import GatewayConfig, Mode
from ..engine.attach.attached import AttachedEngine
from ..engine.launch.cancellation import Cancellation
from ..engine.routes import address as admin_address
from ..errors import StartStopped
from ..gateway import ShardGateway, listener
from ..gateway.leftovers import sweep
from ..modes.choose import choose
from ..system.waiting import SIGNAL_SECONDS
from .outcome import in_thread, outcome, to_its_end
from .settings import configured
from .signals import SignalHandlers
from .sources import is_made_elsewhere, open_engine
from .started import StartedGateway

log = logging.getLogger("sglang_subgw.gateway")


class Gateway(StartedGateway):
    """Shards around an engine: a context manager, blocking or asynchronous, that has started when it is entered.

    `engine_or_args` is one of

    - an sglang.Engine of the caller's, made with `tokenizer_worker_num` of 2 or more, which goes on after the gateway;
    - SGLang's arguments, a dict of keywords or a list as of the command line, for an engine that is made, and ended, by
      the gateway: in this process if it is started in the main thread and in no event loop, else in one of its own;
    - the pid of another process that has an engine, or the name of its segment;
    - None, for a small demo model on the CPU.

    `shards`, `mode`, `app` (an ASGI application, a factory of one, or its name), `serve` (a coroutine function
    `serve(engine, shard)`, or its name) and all further keywords are those of GatewayConfig; they change `config` if
    that is given, too. Signals are left alone unless `handle_signals` is true, see `SignalHandlers`.

    Every method works in any thread. A gateway is started once. Each `async_` method is the other one for event loops,
    which it never blocks. Raises ConfigError for what can't be used.
    """

    def __init__(
        self,
        engine_or_args: object = None,
        config: GatewayConfig | None = None,
        *,
        shards: int | None = None,
        mode: Mode | str | None = None,
        app: object = None,
        serve: object = None,
        handle_signals: bool = False,
        **fields: Any,
    ) -> None:
        super().__init__(configured(config, shards=shards, mode=mode, app=app, serve=serve, **fields))
        self._source = engine_or_args
        self._signals = SignalHandlers(self, self.begin_drain) if handle_signals else None
        self._cancellation = Cancellation()
        self._drain_seconds = 0.0
        # A signal's handler can come upon the thread that holds it.
        self._lock = threading.RLock()
        self._begun = False
        self._starter: int | None = None
        self._ends = ExitStack()
        self._stopping = threading.Lock()

    # Its life.

    def start(self) -> None:
        """Start the engine, if it is to be made, and all shards; returns when they serve.

        Raises EngineStartError, EngineDied, ModeUnavailable, ShardStartError or ContractError with the reason,
        StartStopped when it was stopped meanwhile, and RuntimeError for one that was started or stopped before.
        """
        self._begin()
        self._start()

    def ready(self, timeout: float | None = None) -> None:
        """Until it serves, whoever starts it; raises what the start raises, TimeoutError after `timeout` seconds."""
        self._started.result(timeout)

    def wait(self, timeout: float | None = None) -> bool:
        """Until it has ended, for whatever reason; False after `timeout` seconds."""
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        while not self.has_ended and (left := deadline - time.monotonic()) > 0:
            with suppress(TimeoutError):
                self._ended.result(min(left, SIGNAL_SECONDS))
        return self.has_ended

    def begin_drain(self, timeout: float | None = None) -> None:
        """Accept nothing more, and end when what runs has: after `timeout` seconds, or the configured, at the latest.

        A start that is under way fails.
        """
        if not self._begun:
            self.stop()
            return
        self._drain_seconds = self.config.drain_timeout_seconds if timeout is None else timeout
        self._cancellation.cancel()
        if self._gateway is not None:
            self._gateway.begin_drain(self._drain_seconds)

    def drain(self, timeout: float | None = None) -> None:
        """`begin_drain`, and wait for the end; raises the gateway's failure if there is one."""
        self.begin_drain(timeout)
        self.wait()
        self.raise_failure()

    def stop(self) -> None:
        """End now: what runs gets an error, a start under way fails, an engine that was made for it is shut down.

        Returns when nothing is left of it. Safe to call twice, and from several threads.
        """
        with self._lock:
            begun, self._begun = self._begun, True
        if not begun:
            self._fail(StartStopped("The gateway was stopped before it was started."))
            return
        self.begin_drain(0.0)
        if self._starter == threading.get_ident() and not self._started.done():
            # In a signal's handler, say: the start, which goes on below it, ends what it has made.
            return
        self._started.exception()
        with self._stopping:
            self._ends.close()
        _settle(self._ended)
        self._restore_signals()

    async def async_start(self) -> None:
        """As `start`; an engine that is made is in a process of its own. Cancelled, it leaves nothing behind."""
        self._begin()
        try:
            await in_thread(self._start)
        except CancelledError:
            await self.async_stop()
            raise
        except BaseException:
            self._restore_signals()
            raise

    async def async_ready(self) -> None:
        """As `ready`."""
        await outcome(self._started)

    async def async_wait(self) -> None:
        """As `wait`."""
        await outcome(self._ended)

    async def async_drain(self, timeout: float | None = None) -> None:
        """As `drain`; cancelled, it does not wait, and the drain goes on."""
        self.begin_drain(timeout)
        await self.async_wait()
        self.raise_failure()

    async def async_stop(self) -> None:
        """As `stop`; a cancellation comes through when it has stopped."""
        try:
            await to_its_end(self.stop)
        finally:
            self._restore_signals()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        await self.async_start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.async_stop()

    # Inside.

    def _begin(self) -> None:
        with self._lock:
            if self._begun:
                raise RuntimeError("A gateway is started once, and this one was started or stopped: make another.")
            self._begun = True
        if self._signals is not None:
            try:
                self._signals.install()
            except BaseException as exc:
                self._fail(exc)
                raise

    def _start(self) -> None:
        self._starter = threading.get_ident()
        try:
            with ExitStack() as ends:
                self._bring_up(ends)
                self._ends = ends.pop_all()
        except BaseException as exc:
            self._fail(exc)
            raise
        self._started.set_result(None)

    def _bring_up(self, ends: ExitStack) -> None:
        config = self._config
        choice = choose(config)
        # First, so that a taken port is known before the engine's half minute, not after it.
        sockets = listener.bind_for(config)
        ends.callback(listener.close, sockets)
        if is_made_elsewhere(self._source):
            # Its engine routes are, too.
            config = dataclasses.replace(config, engine_routes=(), admin_listen="")
        if (admin_socket := admin_address.bind_for(config)) is not None:
            ends.callback(admin_socket.close)
        for removed in sweep():
            log.info("Removed what a gateway that was killed left behind: %s", removed)
        engine = ends.enter_context(
            open_engine(
                self._source,
                config=self._config,
                address=listener.tcp_address(sockets),
                on_phase=lambda text: log.info("%s …", text),
                cancellation=self._cancellation,
            )
        )
        gateway = ShardGateway(engine, config, sockets=sockets, choice=choice, admin_socket=admin_socket)
        gateway.on_end = lambda: _settle(self._ended)
        # Shards end before the engine: SGLang's shutdown kills every child of this process.
        ends.callback(gateway.stop)
        try:
            with self._cancellation.by(lambda: gateway.cancel_start(self._drain_seconds)):
                self._gateway = gateway
                gateway.start()
        except StartStopped:
            # It may have come up in that moment: what runs then has the time that it was given.
            gateway.wait()
            raise
        if isinstance(engine, AttachedEngine):
            engine.on_stopping(gateway.begin_drain)

    def _fail(self, error: BaseException) -> None:
        self._started.set_exception(error)
        _settle(self._ended)
        self._restore_signals()

    def _restore_signals(self) -> None:
        if self._signals is not None:
            self._signals.restore()


def _settle(future: Future[None]) -> None:
    with suppress(InvalidStateError):
        future.set_result(None)
