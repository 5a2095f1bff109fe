"""A gateway's configuration from keywords."""

from __future__ import annotations

import dataclasses
from typing import Any

from ..config import GatewayConfig
from ..errors import ConfigError
from ..shard.user_code import name_of


def configured(config: GatewayConfig | None, *, app: object, serve: object, **fields: Any) -> GatewayConfig:
    """`config`, or the defaults, with what isn't None in its place; raises ConfigError for what is no setting."""
    changes = {"app": _named(app), "serve": _named(serve), **fields}
    changes = {name: value for name, value in changes.items() if value is not None}
    known = [field.name for field in dataclasses.fields(GatewayConfig)]
    if unknown := sorted(changes.keys() - set(known)):
        raise ConfigError(
            f"{', '.join(unknown)}: a gateway has no such setting.",
            hint=f"It has {', '.join(known)}. SGLang's arguments go into a dict of their own, the first argument.",
        )
    return dataclasses.replace(config or GatewayConfig(), **changes)


def _named(code: object) -> str | None:
    return None if code is None else name_of(code)
