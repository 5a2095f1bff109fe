"""The gateway: engine up, shards up, ready, balance, drain, stop."""

from .gateway import Engine, Gateway

__all__ = ["Engine", "Gateway"]
