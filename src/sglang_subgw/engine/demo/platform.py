"""Entry point of SGLang's platform plugins: offers the CPU platform, but only when it was asked for."""

from __future__ import annotations

import os
from typing import Final

ASKED_FOR: Final = "SGLANG_SUBGW_CPU"
"""Environment variable, "1" in an engine that `launch` starts on plain CPU; its children inherit it."""


def activate() -> str | None:
    """The platform class's name for SGLang, or None to stand aside: not asked for, or an accelerator is there."""
    if os.environ.get(ASKED_FOR) != "1" or accelerator_present():
        return None
    return "sglang_subgw.engine.demo.cpu:CpuPlatform"


def accelerator_present() -> bool:
    """Whether torch can use an accelerator here; imports torch."""
    import torch

    return bool(torch.accelerator.is_available())
