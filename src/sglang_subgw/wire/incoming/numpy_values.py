"""numpy's scalars and arrays in a pickle, read as plain numbers and lists, without numpy."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any, Final

_CODES: Final = {
    "b1": "?",
    "i1": "b",
    "i2": "h",
    "i4": "i",
    "i8": "q",
    "u1": "B",
    "u2": "H",
    "u4": "I",
    "u8": "Q",
    "f2": "e",
    "f4": "f",
    "f8": "d",
}
_ORDERS: Final = {"<": "<", ">": ">", "|": "<", "=": "="}


class _Dtype:
    """numpy.dtype: its code comes with the call, its byte order with the state."""

    def __init__(self, code: str, *_: Any) -> None:
        if code not in _CODES:
            raise ValueError(f"numpy's dtype {code!r} is not read here")
        self._code = _CODES[code]
        self._order = "<"

    def __setstate__(self, state: Sequence[Any]) -> None:
        self._order = _ORDERS[state[1]]

    def unpack(self, data: bytes) -> tuple[Any, ...]:
        """All numbers in the bytes."""
        count = len(data) // struct.calcsize(self._code)
        return struct.unpack(f"{self._order}{count}{self._code}", data)


class _Array(list[Any]):
    """numpy.ndarray: empty at first, filled by its state."""

    def __setstate__(self, state: Sequence[Any]) -> None:
        _, shape, dtype, fortran_order, data = state
        if fortran_order and len(shape) > 1:
            raise ValueError("numpy's arrays in column order are not read here")
        self[:] = _nested(dtype.unpack(data), shape)


def _nested(values: Sequence[Any], shape: Sequence[int]) -> list[Any]:
    if len(shape) <= 1:
        return list(values)
    step = len(values) // shape[0] if shape[0] else 0
    return [_nested(values[i * step : (i + 1) * step], shape[1:]) for i in range(shape[0])]


def _scalar(dtype: _Dtype, data: bytes) -> Any:
    (value,) = dtype.unpack(data)
    return value


def _reconstruct(*_: Any) -> _Array:
    return _Array()


def _from_buffer(data: Any, dtype: _Dtype, shape: Sequence[int], order: str) -> list[Any]:
    if order != "C" and len(shape) > 1:
        raise ValueError("numpy's arrays in column order are not read here")
    return _nested(dtype.unpack(bytes(data)), shape)


NUMPY_VALUES: Final[dict[tuple[str, str], Callable[..., Any]]] = {
    ("numpy", "dtype"): _Dtype,
    ("numpy", "ndarray"): _Array,
    ("numpy._core.numeric", "_frombuffer"): _from_buffer,
    ("numpy.core.numeric", "_frombuffer"): _from_buffer,
    **{
        (f"{package}.multiarray", name): value
        for package in ("numpy._core", "numpy.core")
        for name, value in (("scalar", _scalar), ("_reconstruct", _reconstruct))
    },
}
"""What an unpickler finds under numpy's names (numpy 1 and 2)."""
