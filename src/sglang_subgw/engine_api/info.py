"""A shard's identity, for applications and service discovery."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Self

from ..contract import EngineContract


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
    model: str = ""
    """The name that the model is served under."""
    dp_ranks: int = 1
    """Data-parallel ranks of the engine, for `routed_dp_rank`, loads and KV events."""

    @classmethod
    def of(cls, contract: EngineContract, *, index: int, count: int, generation: int, mode: str) -> Self:
        """That of a shard in this process."""
        return cls(
            engine_id=contract.engine_id,
            gateway_id=contract.gateway_id,
            index=index,
            count=count,
            generation=generation,
            mode=mode,
            pid=os.getpid(),
            model=contract.model.served_model_name,
            dp_ranks=max(contract.features.num_dp_ranks, 1),
        )

    @property
    def identity(self) -> str:
        """`engine-gateway-index`: no two shards that live have the same, and one that starts again keeps its own."""
        return f"{self.engine_id}-{self.gateway_id}-{self.index}"
