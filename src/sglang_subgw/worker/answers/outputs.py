"""What SGLang answers with objects of its own: the same names and attributes, without sglang."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class FlushCacheReqOutput:
    """Whether the prefix cache was emptied, and why not."""

    success: bool
    message: str = ""


@dataclass(frozen=True, slots=True)
class LoRAUpdateOutput:
    """What became of a LoRA adapter's load or unload."""

    success: bool
    error_message: str | None = None
    loaded_adapters: dict[str, Any] | None = field(default=None)
    """By name, the path of each adapter that the engine has now."""


@dataclass(frozen=True, slots=True)
class ScoreResult:
    """The scores of a query's items; where SGLang has tensors these are lists of numbers."""

    scores: list[Any]
    """A row of scores per item, or a matrix per item where they were read at several positions."""
    prompt_tokens: int = 0
    pooled_hidden_states: list[Any] | None = None
    """Along `scores`, what the head was given."""
    token_logprobs: list[list[float]] | None = None
    """Of each item's candidates, over the whole vocabulary."""


def merged(answers: list[dict[str, Any]]) -> tuple[bool, str]:
    """The answers of all ranks as one: success if all had it, their messages joined, as SGLang does."""
    success = all(answer.get("success") for answer in answers)
    return success, " | ".join(str(answer.get("message") or "") for answer in answers)
