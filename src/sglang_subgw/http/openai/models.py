"""/v1/models, and which model names a request may use."""

from __future__ import annotations

import time
from typing import Any

from ...contract import EngineContract
from ...errors import RequestRejected
from ..core.exchange import Exchange
from ..services import Services
from .protocol import DEFAULT_MODEL


def resolve_model(name: str, contract: EngineContract) -> str | None:
    """The LoRA adapter in a model name ("base:adapter"), or None; raises RequestRejected for an unknown model."""
    served = contract.model.served_model_name
    if name in (served, DEFAULT_MODEL):
        return None
    if contract.features.enable_lora:
        for base in (served, DEFAULT_MODEL):
            if name.startswith(f"{base}:"):
                return name[len(base) + 1 :].strip() or None
    raise unknown_model(name)


def unknown_model(name: str) -> RequestRejected:
    """The error for a model that isn't served."""
    return RequestRejected(f"The model {name!r} does not exist", status=404, type="NotFoundError", param="model")


class ModelsHandler:
    """GET /v1/models."""

    def __init__(self, services: Services) -> None:
        self._contract = services.contract
        self._engine = services.engine

    async def __call__(self, exchange: Exchange) -> None:
        card = _card(self._contract)
        adapters = [
            {**card, "id": name, "root": path, "parent": card["id"], "max_model_len": None}
            for name, path in self._engine.adapters().items()
        ]
        await exchange.json({"object": "list", "data": [card, *adapters]})


class ModelHandler:
    """GET /v1/models/{model}."""

    def __init__(self, services: Services) -> None:
        self._contract = services.contract

    async def __call__(self, exchange: Exchange) -> None:
        name = exchange.scope["path_params"]["model"]
        if name != self._contract.model.served_model_name:
            error = {
                "message": f"The model '{name}' does not exist",
                "type": "invalid_request_error",
                "param": "model",
                "code": "model_not_found",
            }
            await exchange.json({"error": error}, 404)
            return
        await exchange.json(_card(self._contract))


def _card(contract: EngineContract) -> dict[str, Any]:
    name = contract.model.served_model_name
    return {
        "id": name,
        "object": "model",
        "created": int(time.time()),
        "owned_by": "sglang",
        "root": name,
        "parent": None,
        "max_model_len": contract.model.context_length,
    }
