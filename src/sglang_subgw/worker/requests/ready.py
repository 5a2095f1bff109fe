"""A prompt that can be sent: the fields of the message that carries it."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import Any

from ...contract import EngineContract, FeatureFacts
from ...wire.message import Struct
from .plan import AnyPrompt


@dataclass(slots=True)
class Ready[P: AnyPrompt]:
    """A prompt that can be sent: as often as it has samples."""

    prompt: P
    ids: array[int]
    sampling: dict[str, Any]
    fields: dict[str, Any]
    """The message's fields but for rid, lora_id and sampling_params."""

    def message(self, rid: str, *, lora_id: str | None = None, warm_up: bool = False) -> dict[str, Any]:
        """The fields of one copy; a warm-up only fills the prefix cache."""
        fields = {**self.fields, "rid": rid}
        if lora_id is not None:
            fields["lora_id"] = lora_id
        if warm_up:
            fields["sampling_params"] = Struct("SamplingParams", {**self.sampling, "max_new_tokens": 0})
            fields["stream"] = False
        else:
            fields["sampling_params"] = Struct("SamplingParams", self.sampling)
        return fields


def names_adapters(contract: EngineContract, kind: str) -> bool:
    """SGLang 0.5.23 and later want an adapter's name as well as its id, for KV events."""
    return any(name == "lora_name" for name, _ in contract.wire.schema.get(kind, ()))


def priority_of(priority: int | None, features: FeatureFacts) -> int | None:
    """A request's priority, or the engine's default where priorities count."""
    return features.default_priority if priority is None and features.enable_priority_scheduling else priority
