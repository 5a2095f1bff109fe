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


def merged(answers: list[dict[str, Any]]) -> tuple[bool, str]:
    """The answers of all ranks as one: success if all had it, their messages joined, as SGLang does."""
    success = all(answer.get("success") for answer in answers)
    return success, " | ".join(str(answer.get("message") or "") for answer in answers)
