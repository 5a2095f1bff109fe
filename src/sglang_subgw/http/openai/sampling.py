"""The fields of OpenAI's API that say how to sample, as SGLang's sampling parameters."""

from __future__ import annotations

from typing import Any, Final

from ...contract import EngineContract
from .protocol import PREFERRED, SAMPLING

_RENAMED: Final = {"min_tokens": "min_new_tokens", "seed": "sampling_seed"}
_FIELDS: Final = tuple(
    field.name for field in (*SAMPLING, *PREFERRED) if not field.refusal and field.name != "response_format"
)
_ALL_TOKENS: Final = -1
"""As top_k; on the wire it is a number that no vocabulary reaches."""
_UNKNOWN: Final = object()
"""Equals nothing."""


class SamplingFields:
    """For one engine: what it does anyway isn't sent, unless the engine was told to prefer something else."""

    def __init__(self, contract: EngineContract) -> None:
        defaults: dict[str, Any] = {}
        if not contract.model.preferred_sampling_params:
            defaults = dict(contract.wire.schema.get("SamplingParams", ()))
            if "top_k" in defaults:
                defaults["top_k"] = _ALL_TOKENS
        wires = {name: _RENAMED.get(name, name) for name in _FIELDS}
        self._fields = [(name, wire, defaults.get(wire, _UNKNOWN)) for name, wire in wires.items()]

    def params(self, values: dict[str, Any], max_new_tokens: int | None) -> dict[str, Any]:
        """The parameters of checked fields; without a number of tokens, as many as fit."""
        params = {wire: values[name] for name, wire, default in self._fields if values[name] != default}
        params["max_new_tokens"] = max_new_tokens
        if values.get("json_schema") is not None:
            params["json_schema"] = values["json_schema"]
        if values["response_format"] is not None:
            params.update(values["response_format"])
        return params
