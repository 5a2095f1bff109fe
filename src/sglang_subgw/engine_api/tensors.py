"""Tensors on their way to the schedulers: serialized by the engine's process, which shares memory with them.

A shard may have no torch; its caller may. A tensor crosses as its name, dtype, shape and bytes, whatever made it.
"""

from __future__ import annotations

import base64
import sys
from collections.abc import Iterable, Mapping
from typing import Any, Final

from ..errors import RequestRejected
from .base import EngineCalls

_SERIALIZED: Final = "flattened_bucket"
"""SGLang's load format of which callers pass serialized payloads, one per tensor-parallel rank."""


class TensorCalls(EngineCalls):
    """What weights and LoRA adapters from tensors have in common."""

    async def serialize_tensors(self, tensors: Any, load_format: str | None) -> list[bytes]:
        """One payload per tensor-parallel rank, each to be read once; raises RequestRejected for what is no tensor."""
        if load_format == _SERIALIZED or _is_payloads(tensors):
            return [_payload(item) for item in tensors]
        rows, parts = [], []
        named = isinstance(tensors, Mapping)
        for name, tensor in _pairs(tensors):
            dtype, shape, data = plain(name, tensor)
            rows.append({"name": name, "dtype": dtype, "shape": shape, "bytes": len(data)})
            parts.append(data)
        arguments = {"tensors": rows, "as_dict": named}
        sizes, blob = await self.coordination.call("serialize_tensors", arguments, b"".join(parts))
        payloads, start = [], 0
        for size in sizes:
            payloads.append(blob[start : start + size])
            start += size
        return payloads


def plain(name: str, tensor: Any) -> tuple[str, list[int], bytes]:
    """A tensor's dtype as torch names it, its shape, and its bytes in C order."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(tensor, torch.Tensor):
        flat = tensor.detach().cpu().contiguous()
        # As bytes, for numpy has no bfloat16.
        data = flat.reshape(-1).view(torch.uint8).numpy().tobytes()
        return str(flat.dtype).removeprefix("torch."), list(flat.shape), data
    dtype = getattr(tensor, "dtype", None)
    if dtype is None or not hasattr(tensor, "tobytes") or not hasattr(tensor, "shape"):
        raise RequestRejected(f"{name!r} is of type {type(tensor).__name__}, not a tensor of torch's or an array.")
    return str(dtype), list(tensor.shape), tensor.tobytes()


def _pairs(tensors: Any) -> Iterable[tuple[str, Any]]:
    pairs = tensors.items() if isinstance(tensors, Mapping) else tensors
    try:
        pairs = [(name, tensor) for name, tensor in pairs]
    except (TypeError, ValueError):
        raise RequestRejected("Tensors are given as pairs of a name and a tensor, or as a dict.") from None
    for name, _ in pairs:
        if not isinstance(name, str) or not name:
            raise RequestRejected(f"A tensor's name must be a non-empty string, got {name!r}.")
    if not pairs:
        raise RequestRejected("There are no tensors.")
    return pairs


def _is_payloads(tensors: Any) -> bool:
    return (
        isinstance(tensors, list)
        and bool(tensors)
        and all(isinstance(item, (bytes, bytearray, memoryview, str)) for item in tensors)
    )


def _payload(item: Any) -> bytes:
    if isinstance(item, str):
        try:
            return base64.b64decode(item, validate=True)
        except ValueError:
            raise RequestRejected("A serialized payload that is text must be base64.") from None
    if isinstance(item, (bytes, bytearray, memoryview)):
        return bytes(item)
    raise RequestRejected(f"A serialized payload must be bytes or base64 text, got {type(item).__name__}.")
