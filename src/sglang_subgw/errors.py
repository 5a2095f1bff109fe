"""Every error this package raises: one base, each class says who raises it and when."""

from __future__ import annotations

from typing import Any


class SubgwError(Exception):
    """Base of all errors of this package; `hint` says what to do about it."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} {self.hint}" if self.hint else self.message


class ConfigError(SubgwError):
    """Raised by the command line and `GatewayConfig` for a value that can't be used."""


class ContractError(SubgwError):
    """Raised by `contract` when a shared segment is missing, foreign or of another layout."""


class StorageError(SubgwError):
    """Raised at a start when a file or directory that it needs can't be written; names the place and the reason."""


class EngineStartError(SubgwError):
    """Raised by `engine.launch` when SGLang's engine does not come up."""


class StartStopped(SubgwError):
    """Raised by `Gateway.start`, and to all who wait for it, when somebody stopped or drained the gateway meanwhile."""


class EngineDied(SubgwError):
    """Raised by `Gateway` when a process of the engine ended while it served."""


class ModeUnavailable(SubgwError):
    """Raised by `modes` when a mode can't run here; names the module or build that prevents it."""


class ShardStartError(SubgwError):
    """Raised by `Gateway` when a shard fails before it is ready; carries the shard's traceback."""


class ShardFailed(SubgwError):
    """Raised by a shard that lost a part of itself, and by `Gateway` when one keeps ending; carries the reason."""


class DependencyError(SubgwError):
    """Raised by a shard at its start for a library that isn't as this package needs it; names the part."""


class WireError(SubgwError):
    """Raised by `wire` for a message that can't be encoded for, or decoded from, the engine."""


class BenchError(SubgwError):
    """Raised by `bench` when what is to be measured does not come up, answers wrongly or ends."""


class RequestError(SubgwError):
    """Base of what ends one client's request: an HTTP status and OpenAI's error fields."""

    status = 500
    type = "InternalServerError"

    def __init__(
        self,
        message: str,
        *,
        hint: str = "",
        status: int | None = None,
        type: str | None = None,
        param: str | None = None,
        code: Any = None,
    ) -> None:
        super().__init__(message, hint=hint)
        if status is not None:
            self.status = status
        if type is not None:
            self.type = type
        self.param = param
        self.code = self.status if code is None else code


class RequestRejected(RequestError):
    """Raised by a shard before anything is sent to the engine: the request itself is wrong."""

    status = 400
    type = "BadRequestError"


class EngineRejected(RequestError):
    """Raised by a shard when the engine ended a request with an error status of its own."""


class EngineUnavailable(RequestError):
    """Raised by a shard for every request that the engine, or a stop, kept from finishing."""

    status = 503
    type = "ServiceUnavailableError"
