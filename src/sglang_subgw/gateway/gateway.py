"""A gateway: shards around one engine, up, ready, draining, stopped."""

from __future__ import annotations

import dataclasses
import secrets
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, Self

from ..config import MAX_SHARDS, GatewayConfig, Mode
from ..contract import EngineContract, Segment, ShardState, Word, sweep_stale
from ..engine.attach.fence import RouterFence
from ..engine.attach.seats import Seat, SeatSweeper
from ..engine.routes.address import AdminSocket
from ..engine.routes.start import start_admin
from ..errors import ConfigError, EngineDied, ShardFailed, ShardStartError
from ..modes.choose import Choice, choose
from ..system.storage import writing
from . import listener
from .memory import private_bytes
from .supervisor import Supervisor

if TYPE_CHECKING:
    from ..engine.routes.listener import AdminListener


class Engine(Protocol):
    """What a gateway needs of an engine: a launched SGLang, another process's, or the simulated one."""

    @property
    def contract(self) -> EngineContract:
        """What shards are told of it."""

    def on_death(self, callback: Callable[[str], None]) -> None:
        """Call back, from any thread and once, with the reason when a part of the engine ends by itself."""


class ShardGateway:
    """Shards over a running engine; installs no signal handlers, and leaves the engine running when it ends."""

    def __init__(
        self,
        engine: Engine,
        config: GatewayConfig,
        *,
        sockets: list[socket.socket] | None = None,
        choice: Choice | None = None,
        admin_socket: AdminSocket | None = None,
    ) -> None:
        self.engine = engine
        self.config = config
        """Once started, with the mode that was chosen."""
        self.choice = choice
        """The mode and the reasons for it; settled by `start` if not before."""
        self.contract = engine.contract
        """What its shards are told: once started, with this gateway's own id."""
        self.segment: Segment | None = None
        self._sockets = sockets
        self._admin_socket = admin_socket
        self._admin: AdminListener | None = None
        self._supervisor: Supervisor | None = None
        self._fence: RouterFence | None = None
        self._seat: Seat | None = None
        self._sweeper: SeatSweeper | None = None
        self._bytes_before = 0
        self._engine_death = ""
        self._cancelled: float | None = None
        self.urls: list[str] = []
        self._address: tuple[str, int] | None = None
        self.on_end: Callable[[], None] = lambda: None
        """Called once, from another thread, when a started gateway has ended."""

    def start(self) -> None:
        """Start all shards and listen; raises ModeUnavailable or ShardStartError with the reason."""
        sweep_stale()
        try:
            self.choice = self.choice or choose(self.config)
            self.config = self.choice.apply(self.config)
            supervisor = self._start()
            if self._cancelled is not None:
                supervisor.drain(self._cancelled)
            supervisor.ready.wait()
            if supervisor.failure:
                reason = supervisor.failure
                raise EngineDied(reason) if self._engine_death else ShardStartError(reason)
            if self._cancelled is not None:
                # It may be up in the same moment; what runs then has the time that it was given.
                supervisor.join()
                raise ShardStartError("The start was stopped.")
        except BaseException:
            self.stop()
            raise

    def cancel_start(self, timeout: float = 0.0) -> None:
        """Let a `start` that is under way, or still to come, fail soon; from any thread, or a signal's handler.

        What a shard that is up already runs, as a `serve` function may, has `timeout` seconds to end.
        """
        self._cancelled = timeout
        if self._supervisor is not None:
            self._supervisor.drain(timeout)

    def _start(self) -> Supervisor:
        if self._sockets is None:
            self._sockets = listener.bind_for(self.config)
        self.urls = [listener.url(sock, self.config.host) for sock in self._sockets]
        self._address = listener.tcp_address(self._sockets)
        gateway_id = secrets.token_hex(6)
        self._seat = Seat.claim(self.engine.contract, gateway_id)
        self._admin = start_admin(self.config, self.engine, self._admin_socket, self._seat.path)
        self.contract = self.engine.contract.for_gateway(gateway_id, str(self._seat.path))
        self.segment = Segment.publish(self.contract, slots=MAX_SHARDS)
        self._fence = RouterFence(self.contract)
        self._sweeper = SeatSweeper(self.contract)
        self._sweeper.start()
        self._bytes_before = private_bytes()
        scratch_dir = self._seat.path / "images"
        with writing("The directory for copies of extension modules", self._seat.path):
            scratch_dir.mkdir(mode=0o700)
        self._supervisor = Supervisor(self.config, self.segment, self._sockets, str(scratch_dir), self._fence)
        self._supervisor.on_end = lambda: self.on_end()
        self._supervisor.start()
        self.engine.on_death(self._on_engine_death)
        return self._supervisor

    @property
    def admin_url(self) -> str:
        """Where the engine routes are, "" without any."""
        return self._admin.url if self._admin is not None else ""

    @property
    def address(self) -> tuple[str, int]:
        """Host and port of the first TCP socket; raises ConfigError for a gateway without one, such as of `serve`."""
        if self._address is None:
            raise ConfigError("This gateway has no address: it listens at no TCP port.")
        return self._address

    @property
    def shards(self) -> list[dict[str, Any]]:
        """Every shard's state and counters."""
        return [shard.describe() for shard in self._supervisor.shards] if self._supervisor else []

    @property
    def failure(self) -> str:
        """Why it failed, "" while it has not."""
        return self._supervisor.failure if self._supervisor is not None else ""

    def raise_failure(self) -> None:
        """Raise EngineDied or ShardFailed if the gateway failed."""
        if self.failure:
            raise EngineDied(self.failure) if self._engine_death else ShardFailed(self.failure)

    def bytes_per_shard(self) -> int:
        """Private memory of one shard, on average: of its process, or the growth that its start caused here."""
        assert self._supervisor is not None
        if self.config.mode is Mode.PROCESS:
            total = sum(private_bytes(shard.pid) for shard in self._supervisor.shards)
        else:
            total = private_bytes() - self._bytes_before
        return total // len(self._supervisor.shards)

    def start_seconds(self) -> list[float]:
        """From creation to ready, of each shard."""
        assert self.segment is not None
        return [slot.get(Word.START_US) / 1e6 for slot in self.segment.slots if slot.state is not ShardState.EMPTY]

    def wait(self, timeout: float | None = None) -> bool:
        """Until it has ended; False after `timeout` seconds."""
        if self._supervisor is None:
            return True
        self._supervisor.join(timeout)
        return not self._supervisor.is_alive()

    def restart_shards(self, *indices: int) -> None:
        """Begin to start these shards, or all, again, one after the other while the others serve: no request fails.

        Raises ConfigError for an index that no shard has.
        """
        if self._supervisor is not None:
            known = {shard.index for shard in self._supervisor.shards}
            if not known.issuperset(indices):
                raise ConfigError(f"There is no shard {min(set(indices) - known)}; the shards are {sorted(known)}.")
            self._supervisor.restart_shards(indices or known)

    def resize(self, shards: int) -> None:
        """Begin to have `shards` shards; no request fails by it, and idle connections spread over the new ones.

        Raises ConfigError for a number that can't be.
        """
        self.config = dataclasses.replace(self.config, shards=shards)
        if self._supervisor is not None:
            self._supervisor.resize(shards)

    def begin_drain(self, timeout: float | None = None) -> None:
        """Stop accepting and let requests finish for up to `timeout` seconds (default: the configured)."""
        if self._supervisor is not None:
            self._supervisor.drain(self.config.drain_timeout_seconds if timeout is None else timeout)

    def drain(self, timeout: float | None = None) -> None:
        """`begin_drain`, and wait until it has ended; raises the gateway's failure if there is one."""
        self.begin_drain(timeout)
        self.wait()
        self.raise_failure()

    def stop(self) -> None:
        """End now: what still runs gets an error, and everything that was made is removed. Safe to call twice."""
        if self._supervisor is not None and self._supervisor.is_alive():
            self._supervisor.drain(0.0)
            self._supervisor.join()
        if self._sockets is not None:
            listener.close(self._sockets)
        if self._admin is not None:
            self._admin.close()
            self._admin = None
        if self._admin_socket is not None:
            self._admin_socket.close()
        if self._sweeper is not None:
            self._sweeper.stop()
            self._sweeper = None
        if self._fence is not None:
            if self.stuck:
                # They can't abort what is theirs.
                self._fence.abort_gateway(self.contract.gateway_id)
            self._fence.close()
            self._fence = None
        if self._seat is not None:
            self._seat.release()
            self._seat = None
        if self.segment is not None:
            self.segment.close()
            self.segment = None

    @property
    def stuck(self) -> list[int]:
        """Shards that did not end when told to, and whose mode has no force to end them."""
        return list(self._supervisor.stuck) if self._supervisor is not None else []

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def _on_engine_death(self, reason: str) -> None:
        self._engine_death = reason
        if self._supervisor is not None:
            self._supervisor.fail(reason)
