"""What a gateway of one's own is, and what can be done to it, once it is there."""

from __future__ import annotations

import dataclasses
from concurrent.futures import Future
from typing import Any

from ..config import GatewayConfig
from ..gateway import Engine, ShardGateway
from .engine_process import EngineProcess


class StartedGateway:
    """The part of `Gateway` that asks, and tells, the shards."""

    def __init__(self, config: GatewayConfig) -> None:
        self._config = config
        self._gateway: ShardGateway | None = None
        self._started: Future[None] = Future()
        self._ended: Future[None] = Future()

    @property
    def config(self) -> GatewayConfig:
        """How it runs; once started, with the mode that was chosen and the number of shards that there are to be."""
        if self._gateway is None:
            return self._config
        now = self._gateway.config
        return dataclasses.replace(self._config, mode=now.mode, shards=now.shards)

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
    def admin_url(self) -> str:
        """Where the engine routes are served, "" without any; raises RuntimeError before the start."""
        engine = self.engine
        return engine.admin_url if isinstance(engine, EngineProcess) else self._shards.admin_url

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

    def restart_shards(self, *indices: int) -> None:
        """Begin to start these shards, or all, again, one after the other while the others serve: no request fails.

        Raises ConfigError for an index that no shard has.
        """
        self._shards.restart_shards(*indices)

    def resize(self, shards: int) -> None:
        """Begin to have `shards` shards; no request fails by it. Raises ConfigError for a number that can't be."""
        self._shards.resize(shards)

    @property
    def _shards(self) -> ShardGateway:
        if self._gateway is None:
            raise RuntimeError("This gateway has not started yet.")
        return self._gateway
