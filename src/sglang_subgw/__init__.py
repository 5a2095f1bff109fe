"""Shards SGLang's gateway inside the engine's process."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from .config import GatewayConfig, Mode
    from .embed.attach import attach
    from .embed.gateway import Gateway
    from .embed.run import run
    from .engine_api.engine import ShardEngine
    from .engine_api.info import ShardInfo
    from .kv_events.subscription import KvEventBatch, KvEventsLost

__all__ = [
    "Gateway",
    "GatewayConfig",
    "KvEventBatch",
    "KvEventsLost",
    "Mode",
    "ShardEngine",
    "ShardInfo",
    "attach",
    "run",
]

_WHERE: Final = {
    "Gateway": ".embed.gateway",
    "GatewayConfig": ".config",
    "KvEventBatch": ".kv_events.subscription",
    "KvEventsLost": ".kv_events.subscription",
    "Mode": ".config",
    "ShardEngine": ".engine_api.engine",
    "ShardInfo": ".engine_api.info",
    "attach": ".embed.attach",
    "run": ".embed.run",
}


def __getattr__(name: str) -> Any:
    # Not at once: a shard imports this package before its extension images are in place.
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_WHERE[name], __name__), name)
