"""Calls into the schedulers' own code, which the engine's process makes for a shard."""

from __future__ import annotations

from typing import Any

from ..errors import RequestRejected
from .base import EngineCalls
from .blocking import blocking


class RpcCalls(EngineCalls):
    """SGLang's Engine.collective_rpc and what it is used for."""

    async def async_collective_rpc(self, method: str, **kwargs: Any) -> None:
        """Run a method on every scheduler; `kwargs` are scalars. Raises EngineUnavailable with a failure's reason."""
        for name, value in kwargs.items():
            if not isinstance(value, (bool, int, float, str, type(None))):
                raise RequestRejected(
                    f"{name} must be a scalar, got {type(value).__name__}: the schedulers take no other parameters.",
                    param=name,
                )
        await self.coordination.call("collective_rpc", {"method": method, "parameters": kwargs})

    collective_rpc = blocking(async_collective_rpc)

    async def async_save_remote_model(self, **kwargs: Any) -> None:
        """Save the model to a remote store."""
        await self.async_collective_rpc("save_remote_model", **kwargs)

    save_remote_model = blocking(async_save_remote_model)

    async def async_save_sharded_model(self, **kwargs: Any) -> None:
        """Save the model as the schedulers hold it, shard by shard."""
        await self.async_collective_rpc("save_sharded_model", **kwargs)

    save_sharded_model = blocking(async_save_sharded_model)
