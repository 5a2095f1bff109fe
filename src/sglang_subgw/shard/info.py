"""A shard's identity, for applications and service discovery."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardInfo:
    """Which shard of which engine this is."""

    engine_id: str
    """12 hex digits, unique per engine: what it does is done once, however many shards it has."""
    gateway_id: str
    """12 hex digits, unique per gateway: several can be on one engine, each with a shard 0."""
    index: int
    count: int
    """Shards of the gateway when this one started; `ShardEngine.shards` tells how many there are now."""
    generation: int
    """1, and one more each time that it starts again."""
    mode: str
    pid: int

    @property
    def identity(self) -> str:
        """`engine-gateway-index`: no two shards that live have the same, and one that starts again keeps its own."""
        return f"{self.engine_id}-{self.gateway_id}-{self.index}"
