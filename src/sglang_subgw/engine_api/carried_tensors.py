"""Tensors among a call's arguments, on their way to the engine's process: their bytes apart, their places marked."""

from __future__ import annotations

from array import array
from typing import Any

from ..errors import RequestRejected
from .tensors import plain


class Carrier:
    """Takes the tensors of one call: torch's, arrays, or plain lists of numbers."""

    def __init__(self) -> None:
        self._rows: list[dict[str, Any]] = []
        self._parts: list[bytes] = []

    @property
    def blob(self) -> bytes:
        """The tensors' bytes, one after the other."""
        return b"".join(self._parts)

    def put(self, name: str, value: Any) -> Any:
        """The value with a mark in the place of each tensor; raises RequestRejected for what is none."""
        if value is None:
            return None
        if isinstance(value, (list, tuple)) and not _is_vector(value):
            return [self.put(name, item) for item in value]
        dtype, shape, data = _vector(value) if isinstance(value, (list, tuple)) else plain(name, value)
        self._rows.append({"dtype": dtype, "shape": shape, "bytes": len(data)})
        self._parts.append(data)
        return {"tensor": len(self._rows) - 1}

    def arguments(self, given: dict[str, Any]) -> dict[str, Any]:
        """What the engine's side rebuilds the call's arguments from."""
        return {"given": given, "tensors": self._rows}


def _is_vector(value: list[Any] | tuple[Any, ...]) -> bool:
    return bool(value) and all(type(item) in (int, float) for item in value)


def _vector(value: list[Any] | tuple[Any, ...]) -> tuple[str, list[int], bytes]:
    try:
        return "float32", [len(value)], array("f", value).tobytes()
    except OverflowError:
        raise RequestRejected("A number in an embedding is too large for a float32.") from None
