"""What the handlers of all routes work with."""

from __future__ import annotations

from dataclasses import dataclass

from ..config import GatewayConfig
from ..contract import EngineContract
from ..engine_api.engine import ShardEngine
from ..engine_api.info import ShardInfo


@dataclass(frozen=True, slots=True)
class Services:
    """The parts of one shard that a handler may ask."""

    engine: ShardEngine
    info: ShardInfo
    config: GatewayConfig

    @property
    def contract(self) -> EngineContract:
        """The engine's contract."""
        return self.engine.contract
