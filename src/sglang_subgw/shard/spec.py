"""What a shard is given to start with: plain values, the same in every mode."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass

from ..config import GatewayConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardSpec:
    """One life of one shard."""

    segment: str
    """Name of the gateway's shared segment."""
    index: int
    generation: int
    config: GatewayConfig
    isolated: bool = True
    """It has an interpreter of its own; False where it shares one with the application around it."""
    channel_fd: int = -1
    """The shard's end of its control channel; set by the host that starts it."""
    leader_pid: int = 0
    """The gateway's process."""
    created_ns: int = 0
    """time.monotonic_ns at which the host began to start it."""

    def to_json(self) -> str:
        """This spec as JSON text."""
        return json.dumps({**dataclasses.asdict(self), "config": self.config.to_json()})

    @classmethod
    def from_json(cls, text: str) -> ShardSpec:
        """The spec that `to_json` wrote."""
        raw = json.loads(text)
        return cls(**{**raw, "config": GatewayConfig.from_json(raw["config"])})
