"""Pinned memory on a machine that has nothing to copy it to: torch refuses it, SGLang's LoRA asks for nothing else."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final

_MAKERS: Final = ("tensor", "empty", "zeros", "ones", "full")


def accept_pinning() -> None:
    """From now on memory that should be pinned is plain memory, in this process, which uses nothing but the CPU."""
    import torch

    torch.Tensor.pin_memory = _itself
    for name in _MAKERS:
        make = getattr(torch, name)
        if not hasattr(make, "__wrapped__"):
            setattr(torch, name, _unpinned(make))


def _itself(tensor: Any, device: Any = None) -> Any:
    return tensor


def _unpinned(make: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(make)
    def unpinned(*args: Any, **kwargs: Any) -> Any:
        kwargs.pop("pin_memory", None)
        return make(*args, **kwargs)

    return unpinned
