"""The user's own application in a shard: `module:attribute`, an ASGI application or a factory that gets the engine."""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from ..config import GatewayConfig
from ..errors import ConfigError
from .info import ShardInfo

if TYPE_CHECKING:
    from .engine import ShardEngine

_CREATE_APP: Final = ("engine", "info", "config")
"""Parameters that tell a factory like `http.app.create_app` from an ASGI application, which takes three as well."""


def find(name: str) -> tuple[Any, int]:
    """The object that `name` means, and how many arguments it takes as a factory: 0 for an ASGI application.

    Raises ConfigError for a name that leads to nothing that can serve; what its modules raise comes through.
    """
    module_name, _, path = name.partition(":")
    if not module_name or not path or not all(part.isidentifier() for part in path.split(".")):
        raise ConfigError(f"--app {name!r} is not module:attribute.", hint="For instance --app service:app.")
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as exc:
        if exc.name is not None and f"{module_name}.".startswith(f"{exc.name}."):
            raise ConfigError(
                f"--app {name!r}: there is no module {exc.name!r}.", hint="It is looked for as python -m would."
            ) from None
        raise
    for part in path.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise ConfigError(f"--app {name!r}: {module_name} has no attribute {path!r}.") from None
    if not callable(found):
        raise ConfigError(f"--app {name!r} is of type {type(found).__name__}, not an application or a factory of one.")
    return found, _factory_arguments(name, found)


async def load(name: str, engine: ShardEngine, info: ShardInfo, config: GatewayConfig) -> Any:
    """The user's ASGI application, made if `name` is a factory; its scope's state has the engine and the shard."""
    app, count = find(name)
    if count:
        app = app(*(engine, info, config)[:count])
        if inspect.isawaitable(app):
            app = await app
        if not callable(app):
            raise ConfigError(f"--app {name!r} made an object of type {type(app).__name__}, not an ASGI application.")
    return _with_state(app, engine, info)


def _factory_arguments(name: str, found: Callable[..., Any]) -> int:
    try:
        parameters = inspect.signature(found).parameters.values()
    except ValueError:
        # A callable of C without a signature: only an application can be one.
        return 0
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    required = [p for p in positional if p.default is p.empty]
    if len(required) in (1, 2) or tuple(p.name for p in required) == _CREATE_APP:
        return len(required)
    if len(positional) < 3 and not any(p.kind is p.VAR_POSITIONAL for p in parameters):
        raise ConfigError(
            f"--app {name!r} takes {len(positional)} arguments.",
            hint="An ASGI application takes scope, receive and send; a factory takes the engine, or engine and info.",
        )
    return 0


def _with_state(app: Any, engine: ShardEngine, info: ShardInfo) -> Any:
    state = {"engine": engine, "shard": info}

    @functools.wraps(app, updated=())
    async def with_state(scope: Any, receive: Any, send: Any) -> None:
        scope.setdefault("state", {}).update(state)
        await app(scope, receive, send)

    return with_state
