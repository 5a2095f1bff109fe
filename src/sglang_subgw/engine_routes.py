"""Engine routes: which further methods of the engine are exposed at which paths, `<path>[=<method>][:engine|tm]`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Self

from .errors import ConfigError

ENVIRONMENT: Final = "SGLANG_SUBGW_ENGINE_ROUTES"
"""Routes beside those of the command line, separated by commas or white space."""
FORM: Final = "<path>[=<method>][:engine|tm]"
_PATH: Final = re.compile(r"(/[A-Za-z0-9._~-]+)+")


class Owner(StrEnum):
    """Whose method it is: the sglang.Engine's, or its tokenizer manager's."""

    ENGINE = "engine"
    TM = "tm"


@dataclass(frozen=True, slots=True)
class EngineRoute:
    """One route; what it says is well-formed, whether there is such a method is known once the engine is."""

    path: str
    method: str
    owner: Owner

    @classmethod
    def parse(cls, text: str) -> Self:
        """The route that a text means; raises ConfigError."""
        rest, colon, owner = text.partition(":")
        path, equals, method = rest.partition("=")
        if colon and owner not in list(Owner):
            raise _malformed(text, f"{owner!r} is neither {' nor '.join(repr(str(known)) for known in Owner)}")
        if not _PATH.fullmatch(path) or {".", ".."} & set(path.split("/")):
            raise _malformed(text, f"{path!r} is not a path like '/flush_cache'")
        if not equals:
            method = path.rpartition("/")[2].replace("-", "_")
        if not method.isidentifier():
            raise _malformed(text, f"{method!r} is not a method's name")
        if method.startswith("_"):
            raise ConfigError(f"Engine route {text!r}: {method} is private.")
        return cls(path, method, Owner(owner) if colon else Owner.ENGINE)

    def __str__(self) -> str:
        return f"{self.path}={self.method}:{self.owner}"


def parse_routes(texts: Iterable[str]) -> tuple[EngineRoute, ...]:
    """The routes in their order; raises ConfigError for the first that is malformed, private, or at a taken path."""
    routes: dict[str, EngineRoute] = {}
    for text in texts:
        route = EngineRoute.parse(text)
        if (other := routes.setdefault(route.path, route)) is not route:
            raise ConfigError(f"Engine route {text!r}: the path {route.path} is taken by {str(other)!r}.")
    return tuple(routes.values())


def split_routes(text: str) -> list[str]:
    """The routes in an environment variable's text, still unread."""
    return [part for part in re.split(r"[\s,]+", text) if part]


def _malformed(text: str, problem: str) -> ConfigError:
    return ConfigError(f"Engine route {text!r}: {problem}.", hint=f"The form is {FORM}.")
