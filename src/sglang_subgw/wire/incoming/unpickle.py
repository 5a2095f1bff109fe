"""Reading the engine's pickles without importing anything: an allow-list of names, the rest is inert.

What a pickle may allocate isn't limited: only the engine itself, and its user, can write to a shard's socket.
"""

from __future__ import annotations

import array
import io
import pickle
from collections.abc import Callable
from typing import Any, Final

from ...errors import WireError
from ..message import Message, Opaque, TimeStats
from .numpy_values import NUMPY_VALUES
from .tensor_values import TENSOR_VALUES


def _rebuild(cls: type[Opaque], fields: dict[str, Any]) -> Message:
    """msgspec._utils.rebuild: how a struct with keyword-only fields is pickled."""
    return Message(cls.__name__, fields)


_ALLOWED: Final[dict[tuple[str, str], Callable[..., Any]]] = {
    ("msgspec._utils", "rebuild"): _rebuild,
    ("array", "array"): array.array,
    ("array", "_array_reconstructor"): array._array_reconstructor,  # type: ignore[attr-defined]
    ("http", "HTTPStatus"): int,
    ("builtins", "set"): set,
    ("builtins", "frozenset"): frozenset,
    ("builtins", "bytearray"): bytearray,
    ("builtins", "complex"): complex,
    ("collections", "OrderedDict"): dict,
    **NUMPY_VALUES,
    **TENSOR_VALUES,
}

_TIME_STATS: Final = "ReqTimeStats"
"""How SGLang's classes for them are named, in whatever module."""
_MAX_STAND_INS: Final = 4096


class Reader:
    """Unpickles for one shard; keeps the stand-ins that it made for unknown classes."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str], Any] = dict(_ALLOWED)

    def loads(self, data: bytes | memoryview) -> Any:
        """The object in a pickle, unknown classes as Opaque; raises WireError for a broken one."""
        try:
            return _MessageUnpickler(io.BytesIO(data), self._find).load()
        except Exception as exc:  # A pickle's opcodes can raise anything.
            raise WireError(f"A pickle of {len(data)} bytes can't be read: {type(exc).__name__}: {exc}") from exc

    def _find(self, module: str, name: str) -> Any:
        found = self._found.get((module, name))
        if found is None:
            known = TimeStats if name.endswith(_TIME_STATS) else Opaque
            found = type(name.rpartition(".")[2] or "Opaque", (known,), {})
            if len(self._found) < _MAX_STAND_INS:
                self._found[(module, name)] = found
        return found


class _MessageUnpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, find: Callable[[str, str], Any]) -> None:
        super().__init__(file)
        self.find_class = find  # type: ignore[method-assign]
