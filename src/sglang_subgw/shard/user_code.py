"""The user's own code in a shard: what `app` and `serve` name, and the names of objects."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Coroutine
from typing import Any, Final

from ..errors import ConfigError
from .names import name_of

__all__ = ["Serve", "find_app", "find_serve", "name_of", "preload"]

type Serve = Callable[[Any, Any], Coroutine[Any, Any, None]]
"""A server that is not HTTP: `async def serve(engine: ShardEngine, shard: ShardInfo) -> None`."""

_CREATE_APP: Final = ("engine", "info", "config")
"""Parameters that tell a factory like `http.app.create_app` from an ASGI application, which takes three as well."""


def preload(app: str, serve: str) -> None:
    """Import whichever is named, and check that it can serve: raises as `find_app` and `find_serve` do."""
    if app:
        find_app(app)
    if serve:
        find_serve(serve)


def find_app(name: str) -> tuple[Any, int]:
    """The object that `name` means, and how many arguments it takes as a factory: 0 for an ASGI application.

    Raises ConfigError for a name that leads to nothing that can serve; what its modules raise comes through.
    """
    found = _find("--app", name)
    if not callable(found):
        raise ConfigError(f"--app {name!r} is of type {type(found).__name__}, not an application or a factory of one.")
    return found, _factory_arguments(name, found)


def find_serve(name: str) -> Serve:
    """The coroutine function that `name` means; raises ConfigError for what can't be awaited with two arguments."""
    found = _find("--serve", name)
    if not callable(found) or not any(map(inspect.iscoroutinefunction, (found, type(found).__call__))):
        raise ConfigError(
            f"--serve {name!r} is of type {type(found).__name__}, not a coroutine function.",
            hint="It is awaited in every shard: async def serve(engine, shard). An ASGI application goes to --app.",
        )
    try:
        inspect.signature(found).bind("engine", "shard")
    except TypeError as exc:
        raise ConfigError(
            f"--serve {name!r} can't be called with an engine and a shard: {exc}.",
            hint="It is to be as async def serve(engine, shard).",
        ) from None
    serve: Serve = found
    return serve


def _find(option: str, name: str) -> Any:
    module_name, _, path = name.partition(":")
    if not module_name or not path or not all(part.isidentifier() for part in path.split(".")):
        example = f"{option} service:{option.removeprefix('--')}"
        raise ConfigError(f"{option} {name!r} is not module:attribute.", hint=f"For instance {example}.")
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as exc:
        if exc.name is not None and f"{module_name}.".startswith(f"{exc.name}."):
            raise ConfigError(
                f"{option} {name!r}: there is no module {exc.name!r}.", hint="It is looked for as python -m would."
            ) from None
        raise
    for part in path.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise ConfigError(f"{option} {name!r}: {module_name} has no attribute {path!r}.") from None
    return found


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
