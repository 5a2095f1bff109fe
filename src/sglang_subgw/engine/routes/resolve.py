"""Finds the methods that engine routes name, and says what there is where one does not fit."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from ...engine_routes import EngineRoute, Owner
from ...errors import ConfigError
from .parameters import Parameters

_OWNERS: Final = {Owner.ENGINE: "sglang.Engine", Owner.TM: "the tokenizer manager"}


@dataclass(frozen=True, slots=True)
class Method:
    """A method that a route exposes."""

    route: EngineRoute
    owner: Any
    parameters: Parameters
    on_loop: bool
    """On the tokenizer manager's loop: what is asynchronous, and what belongs to the manager, whose sockets do."""

    @property
    def call(self) -> Callable[..., Any]:
        """The method as it is now: what shards must hear of is put around it while they are there."""
        call: Callable[..., Any] = getattr(self.owner, self.route.method)
        return call

    @property
    def http_methods(self) -> tuple[str, ...]:
        """GET only where nothing has to be given."""
        return ("POST",) if self.parameters.needed else ("GET", "POST")


def resolve(routes: Iterable[EngineRoute], engine: Any) -> tuple[Method, ...]:
    """The methods of an sglang.Engine and its tokenizer manager; raises ConfigError for the first there isn't."""
    owners = {Owner.ENGINE: engine, Owner.TM: engine.tokenizer_manager}
    return tuple(_method(route, owners) for route in routes)


def _method(route: EngineRoute, owners: Mapping[Owner, Any]) -> Method:
    owner = owners[route.owner]
    # Not by getattr: a property must not be run to see that it is none. The class's: what is around it says nothing.
    nothing = object()
    found = inspect.getattr_static(type(owner), route.method, inspect.getattr_static(owner, route.method, nothing))
    if not _is_method(found):
        problem = "no such method" if found is nothing else f"{_named(found)}, not a method"
        raise ConfigError(
            f"Engine route {str(route)!r}: {route.method} of {_OWNERS[route.owner]} is {problem}.",
            hint=_what_there_is(route, owners),
        )
    call = found.__get__(owner, type(owner))
    try:
        parameters = Parameters(call)
    except ConfigError as exc:
        raise ConfigError(f"Engine route {str(route)!r}: {exc}") from None
    is_async = inspect.iscoroutinefunction(call) or inspect.isasyncgenfunction(call)
    return Method(route, owner, parameters, on_loop=is_async or route.owner is Owner.TM)


def _is_method(found: Any) -> bool:
    found = found.__func__ if isinstance(found, staticmethod | classmethod) else found
    return inspect.isroutine(found)


def _named(found: Any) -> str:
    name = "class" if isinstance(found, type) else type(found).__name__
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"


def _what_there_is(route: EngineRoute, owners: Mapping[Owner, Any]) -> str:
    for owner in owners.keys() - {route.owner}:
        if _is_method(inspect.getattr_static(owners[owner], route.method, None)):
            return f"It is one of {_OWNERS[owner]}: {route.path}={route.method}:{owner}."
    there = owners[route.owner]
    public = (name for name in dir(there) if not name.startswith("_"))
    names = [name for name in public if _is_method(inspect.getattr_static(there, name, None))]
    if close := difflib.get_close_matches(route.method, names):
        return f"Did you mean {' or '.join(close)}?"
    return f"It has {', '.join(names)}."
