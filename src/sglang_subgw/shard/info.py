"""A shard's identity, for applications and service discovery."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardInfo:
    """Which shard of which engine this is."""

    engine_id: str
    index: int
    count: int
    generation: int
    mode: str
    pid: int
