"""torch's tensors on the wire, read as numbers and nested lists, without torch."""

from __future__ import annotations

import io
import pickle
import struct
from array import array
from collections.abc import Callable, Sequence
from typing import Any, Final

_CODES: Final = {
    "bool": "?",
    "int8": "b",
    "uint8": "B",
    "int16": "h",
    "int32": "i",
    "int64": "q",
    "float16": "e",
    "bfloat16": "H",
    "float32": "f",
    "float64": "d",
}
_STORAGES: Final = {
    "BoolStorage": "bool",
    "CharStorage": "int8",
    "ByteStorage": "uint8",
    "ShortStorage": "int16",
    "IntStorage": "int32",
    "LongStorage": "int64",
    "HalfStorage": "float16",
    "BFloat16Storage": "bfloat16",
    "FloatStorage": "float32",
    "DoubleStorage": "float64",
}
_COUNT: Final = struct.Struct("<q")
_HEADERS: Final = 3
"""Of torch.save's older format: its magic number, its version, and the machine's sizes."""


def tensor(shape: Sequence[int], dtype: str, data: bytes | memoryview) -> Any:
    """A whole tensor in row order; raises ValueError for a type that isn't read here."""
    strides: list[int] = []
    step = 1
    for length in reversed(shape):
        strides.insert(0, step)
        step *= length
    return _nested(_numbers(dtype, data), 0, shape, strides)


def _numbers(dtype: str, data: bytes | memoryview) -> Sequence[Any]:
    if dtype not in _CODES:
        raise ValueError(f"torch's dtype {dtype!r} is not read here")
    code = _CODES[dtype]
    count = len(data) // struct.calcsize(code)
    values = struct.unpack_from(f"<{count}{code}", data)
    if dtype == "bfloat16":
        # The upper half of a float32.
        return memoryview(array("I", (value << 16 for value in values))).cast("B").cast("f")
    return values


def _nested(values: Sequence[Any], offset: int, shape: Sequence[int], strides: Sequence[int]) -> Any:
    if not shape:
        return values[offset]
    places = range(offset, offset + shape[0] * strides[0], strides[0]) if strides[0] else [offset] * shape[0]
    if len(shape) == 1:
        return [values[place] for place in places] if strides[0] != 1 else list(values[offset : offset + shape[0]])
    return [_nested(values, place, shape[1:], strides[1:]) for place in places]


def _load_from_bytes(data: bytes) -> Sequence[Any]:
    """torch.storage's: what a storage pickles to is a file of torch.save's older format."""
    file = io.BytesIO(data)
    for _ in range(_HEADERS):
        _Described(file).load()
    described = _Described(file)
    described.load()
    _Described(file).load()
    (count,) = _COUNT.unpack(file.read(_COUNT.size))
    numbers = _numbers(described.dtype, file.read())
    if len(numbers) != count:
        raise ValueError(f"a storage of {count} numbers holds {len(numbers)}")
    return numbers


class _Described(pickle.Unpickler):
    """Reads the description of a storage; imports nothing."""

    dtype = ""

    def find_class(self, module: str, name: str) -> Any:
        if module != "torch":
            raise pickle.UnpicklingError(f"{module}.{name} describes no storage")
        return name

    def persistent_load(self, pid: Any) -> None:
        self.dtype = _STORAGES[pid[1]]


def _rebuild(storage: Sequence[Any], offset: int, shape: Sequence[int], strides: Sequence[int], *_: Any) -> Any:
    return _nested(storage, offset, shape, strides)


TENSOR_VALUES: Final[dict[tuple[str, str], Callable[..., Any]]] = {
    ("torch._utils", "_rebuild_tensor_v2"): _rebuild,
    ("torch.storage", "_load_from_bytes"): _load_from_bytes,
}
"""What an unpickler finds under torch's names."""
