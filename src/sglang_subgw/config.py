"""The gateway's one configuration object: frozen, checked once, plain enough to cross an interpreter's border."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from .engine_routes import parse_routes
from .errors import ConfigError

MAX_SHARDS: Final = 256
"""As many places has a segment: the number of shards can change while the gateway runs."""


class Mode(StrEnum):
    """Where a shard runs; AUTO is chosen among the others before the first shard starts."""

    AUTO = "auto"
    THREAD = "thread"
    SUBINTERP = "subinterp"
    PROCESS = "process"


SHARD_MODES: Final = (Mode.THREAD, Mode.SUBINTERP, Mode.PROCESS)
"""The modes that a shard can be in."""


class EventLoop(StrEnum):
    """Which event loop a shard runs on; AUTO is uvloop where it loads, else asyncio."""

    AUTO = "auto"
    UVLOOP = "uvloop"
    ASYNCIO = "asyncio"


class Accept(StrEnum):
    """Who accepts: the gateway, which hands each connection to the shard with the least to do, or the shards.

    With REUSEPORT every shard has a listening socket of its own, and the kernel picks one by a hash of the addresses.
    """

    HANDOVER = "handover"
    REUSEPORT = "reuseport"


class Fallback(StrEnum):
    """What may take the place of a mode that can't run here: nothing, or child processes."""

    NONE = "none"
    PROCESS = "process"


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayConfig:
    """How a gateway runs; raises ConfigError on a value that can't be used."""

    shards: int = 4
    mode: Mode = Mode.AUTO
    fallback: Fallback = Fallback.NONE
    app: str = ""
    """`module:attribute` of an ASGI application, or of a factory of one, in place of the built-in routes."""
    serve: str = ""
    """`module:attribute` of `async def serve(engine, shard)`, a server of its own kind in place of any application."""
    host: str = "127.0.0.1"
    port: int = 30000
    accept: Accept = Accept.HANDOVER
    loop: EventLoop = EventLoop.AUTO
    images: str = "auto"
    log_level: str = "info"
    backlog: int = 2048
    max_body_bytes: int = 64 * 2**20
    keep_alive_seconds: float = 75.0
    start_timeout_seconds: float = 60.0
    drain_timeout_seconds: float = 60.0
    health_timeout_seconds: float = 20.0
    stall_seconds: float = 2.0
    """A shard whose loop has not turned for so long gets no new connections."""
    stall_kill_seconds: float = 20.0
    """One that has not for so long is killed, where its mode allows that."""
    engine_routes: tuple[str, ...] = ()
    """Methods of the engine in this process that the admin listener exposes, `<path>[=<method>][:engine|tm]` each."""
    admin_listen: str = ""
    """Where it listens: `unix:PATH` or `[HOST:]PORT`; "" for a unix socket in the private directory."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "mode", _member(Mode, self.mode, "mode"))
        object.__setattr__(self, "fallback", _member(Fallback, self.fallback, "fallback"))
        object.__setattr__(self, "accept", _member(Accept, self.accept, "accept"))
        object.__setattr__(self, "loop", _member(EventLoop, self.loop, "loop"))
        _check(not (self.app and self.serve), f"app {self.app!r} and serve {self.serve!r} exclude each other: give one")
        object.__setattr__(self, "engine_routes", tuple(self.engine_routes))
        parse_routes(self.engine_routes)
        _check(bool(self.engine_routes or not self.admin_listen), "admin_listen says nothing without engine_routes")
        _check(1 <= self.shards <= MAX_SHARDS, f"shards must be from 1 to {MAX_SHARDS}, not {self.shards}")
        _check(0 <= self.port <= 65535, f"port must be from 0 to 65535, not {self.port}")
        for name in (
            "backlog",
            "max_body_bytes",
            "keep_alive_seconds",
            "start_timeout_seconds",
            "drain_timeout_seconds",
            "health_timeout_seconds",
            "stall_seconds",
            "stall_kill_seconds",
        ):
            _check(getattr(self, name) > 0, f"{name} must be more than 0, not {getattr(self, name)}")

    @property
    def user_code(self) -> str:
        """The option and the name of what shards import of the user's, "" where they serve the built-in routes."""
        return f"--serve {self.serve!r}" if self.serve else f"--app {self.app!r}" if self.app else ""

    def to_json(self) -> str:
        """This configuration as JSON text."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> GatewayConfig:
        """The configuration that `to_json` wrote."""
        return cls(**json.loads(text))


def _check(holds: bool, message: str) -> None:
    if not holds:
        raise ConfigError(message)


def _member(kind: type[StrEnum], value: Any, name: str) -> StrEnum:
    try:
        return kind(value)
    except ValueError:
        choices = ", ".join(kind)
        raise ConfigError(f"{name} must be one of {choices}, not {value!r}") from None
