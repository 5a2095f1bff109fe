"""The gateway: engine up, shards up, ready, balance, drain, stop."""

from .gateway import Engine, ShardGateway

__all__ = ["Engine", "ShardGateway"]
