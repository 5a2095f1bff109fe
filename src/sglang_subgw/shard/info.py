"""A shard's identity, for applications and service discovery."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardInfo:
    """Which shard of which engine this is."""

    engine_id: str
    index: int
    count: int
    """Shards of the gateway when this one started; `ShardEngine.shards` tells how many there are now."""
    generation: int
    mode: str
    pid: int
