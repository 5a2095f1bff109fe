"""`Gateway`: shards in a program of one's own, around an engine that is made, wrapped or attached to."""

from __future__ import annotations

import logging
import threading
from asyncio import CancelledError
from concurrent.futures import Future, InvalidStateError
from contextlib import ExitStack, suppress
from typing import Any, Self

from ..config import GatewayConfig, Mode
from ..engine.attached import AttachedEngine
from ..engine.cancellation import Cancellation
from ..errors import EngineStartError
from ..gateway import Engine, listener
from ..gateway import Gateway as ShardGateway
from ..gateway.leftovers import sweep
from ..modes.choose import choose
from .outcome import in_thread, outcome, to_its_end
from .settings import configured
from .signals import SignalHandlers
from .sources import open_engine

log = logging.getLogger("sglang_subgw.gateway")


class Gateway:
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
        self._config = configured(config, shards=shards, mode=mode, app=app, serve=serve, **fields)
        self._source = engine_or_args
        self._signals = SignalHandlers(self) if handle_signals else None
        self._cancellation = Cancellation()
        self._lock = threading.Lock()
        self._begun = False
        self._starter: int | None = None
        self._gateway: ShardGateway | None = None
        self._ends = ExitStack()
        self._stopping = threading.Lock()
        self._started: Future[None] = Future()
        self._ended: Future[None] = Future()

    # Its life.

    def start(self) -> None:
        """Start the engine, if it is to be made, and all shards; returns when they serve.

        Raises EngineStartError, EngineDied, ModeUnavailable, ShardStartError or ContractError with the reason, also
        when it was stopped meanwhile, and RuntimeError for a gateway that was started or stopped before.
        """
        self._begin()
        self._start()

    def ready(self, timeout: float | None = None) -> None:
        """Until it serves, whoever starts it; raises what the start raises, TimeoutError after `timeout` seconds."""
        self._started.result(timeout)

    def wait(self, timeout: float | None = None) -> bool:
        """Until it has ended, for whatever reason; False after `timeout` seconds."""
        with suppress(TimeoutError):
            self._ended.result(timeout)
        return self.has_ended

    def begin_drain(self, timeout: float | None = None) -> None:
        """Accept nothing more, and end when what runs has: after `timeout` seconds, or the configured, at the latest.

        A start that is under way fails.
        """
        if not self._started.done():
            self._cancellation.cancel()
        elif self._gateway is not None:
            self._gateway.begin_drain(timeout)

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
            self._fail(EngineStartError("The gateway was stopped before it was started."))
            return
        self._cancellation.cancel()
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

    # What it is.

    @property
    def config(self) -> GatewayConfig:
        """How it runs; once started, with the mode that was chosen and the number of shards there are to be."""
        return self._gateway.config if self._gateway is not None else self._config

    @property
    def engine(self) -> Engine:
        """The engine: `contract` tells what it is, `engine`, if it is in this process, is the sglang.Engine.

        Raises RuntimeError before there is one.
        """
        return self._shards.engine

    @property
    def engine_name(self) -> str:
        """What `attach`, and Gateways elsewhere, find the engine by; raises RuntimeError when it doesn't serve."""
        gateway = self._shards
        if gateway.segment is None:
            raise RuntimeError("This gateway does not serve: nothing can attach to its engine by it.")
        return gateway.contract.attached_to or gateway.segment.name

    @property
    def shards(self) -> list[dict[str, Any]]:
        """Every shard's state and counters."""
        return self._gateway.shards if self._gateway is not None else []

    @property
    def urls(self) -> list[str]:
        """Where it listens: none with `serve`."""
        return list(self._shards.urls)

    @property
    def address(self) -> tuple[str, int]:
        """Host and port of the first TCP socket; raises ConfigError without one, as with `serve`."""
        return self._shards.address

    @property
    def serves(self) -> bool:
        """Whether it has started, and neither failed nor ended."""
        return self._started.done() and self._started.exception() is None and not self._ended.done()

    @property
    def has_ended(self) -> bool:
        """Whether nothing serves any more, whatever the reason."""
        return self._ended.done()

    @property
    def failure(self) -> str:
        """Why it failed once it served, "" while it has not."""
        return self._gateway.failure if self._gateway is not None else ""

    def raise_failure(self) -> None:
        """Raise EngineDied or ShardFailed if it failed."""
        if self._gateway is not None:
            self._gateway.raise_failure()

    # What can be done to it.

    def restart_shards(self, *indices: int) -> None:
        """Begin to start these shards, or all, again, one after the other while the others serve: no request fails.

        Raises ConfigError for an index that no shard has.
        """
        self._shards.restart_shards(*indices)

    def resize(self, shards: int) -> None:
        """Begin to have `shards` shards; no request fails by it. Raises ConfigError for a number that can't be."""
        self._shards.resize(shards)

    # Inside.

    @property
    def _shards(self) -> ShardGateway:
        if self._gateway is None:
            raise RuntimeError("This gateway has not started yet.")
        return self._gateway

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
        choice = choose(self._config)
        # First, so that a taken port is known before the engine's half minute, not after it.
        sockets = listener.bind_for(self._config)
        ends.callback(listener.close, sockets)
        for removed in sweep():
            log.info("Removed what a gateway that was killed left behind: %s", removed)
        engine = ends.enter_context(
            open_engine(
                self._source,
                shards=self._config.shards,
                address=listener.tcp_address(sockets),
                on_phase=lambda text: log.info("%s …", text),
                cancellation=self._cancellation,
            )
        )
        gateway = ShardGateway(engine, self._config, sockets=sockets, choice=choice)
        gateway.on_end = lambda: _settle(self._ended)
        # Shards end before the engine: SGLang's shutdown kills every child of this process.
        ends.callback(gateway.stop)
        with self._cancellation.by(gateway.cancel_start):
            self._gateway = gateway
            gateway.start()
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
