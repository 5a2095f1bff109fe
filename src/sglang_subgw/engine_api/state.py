"""What the engine says about itself, and whether it lives."""

from __future__ import annotations

from typing import Any

from .base import EngineCalls
from .blocking import blocking


class StateCalls(EngineCalls):
    """SGLang's Engine.get_server_info and get_model_info, the schedulers' state, and health."""

    async def async_get_internal_state(self) -> list[dict[str, Any]]:
        """The scheduler's own state, one dict per data-parallel rank."""
        answers = await self.control.ask("GetInternalStateReq", {}, "GetInternalStateReqOutput", 30.0)
        return [answer.get("internal_state") or {} for answer in answers]

    get_internal_state = blocking(async_get_internal_state)

    async def async_get_server_info(self) -> dict[str, Any]:
        """The server's arguments, the scheduler's facts and its state now."""
        return {
            **self.contract.server_args,
            **self.contract.scheduler_info,
            "internal_states": await self.async_get_internal_state(),
            "version": self.contract.sglang_version,
        }

    get_server_info = blocking(async_get_server_info)

    async def async_get_model_info(self) -> dict[str, Any]:
        """What is served right now: the model, and the version of its weights."""
        return self.get_model_info()

    def get_model_info(self) -> dict[str, Any]:
        """The same; it asks nobody, and so works in any thread."""
        model, features, weights = self.contract.model, self.contract.features, self.worker.weights
        return {
            "model_path": weights.get("model_path", model.model_path),
            "served_model_name": weights.get("served_model_name", model.served_model_name),
            "is_generation": model.is_generation,
            "weight_version": weights.get("version", model.weight_version),
            "load_format": weights.get("load_format", self.contract.server_args.get("load_format")),
            "reasoning_parser": features.reasoning_parser,
            "tool_call_parser": features.tool_call_parser,
            "disaggregation_mode": features.disaggregation_mode,
        }

    async def health_generate(self, timeout: float) -> bool:
        """Ask for one token; True when anything arrives from the engine within `timeout` seconds.

        An engine that is paused, or has no request for now, makes none: it is asked for its state.
        """
        return await self.worker.health(timeout)
