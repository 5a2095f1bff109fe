"""Stand-in for torch's tensors of float32: they pickle, and pack, to the same bytes, without torch."""

from __future__ import annotations

import pickle
import struct
from array import array
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, Final

from .structs import publish

MSGPACK_EXT: Final = 2
"""SGLang's extension type for a tensor."""

_SAVED: Final = (
    pickle.dumps(0x1950A86A20F9469CFC6C, 2),
    pickle.dumps(1001, 2),
    pickle.dumps({"protocol_version": 1001, "little_endian": True, "type_sizes": {"short": 2, "int": 4, "long": 4}}, 2),
)
"""How torch.save's older format begins: its magic number, its version, and the machine's sizes."""
_KEY: Final = "93898860285776"


class Tensor:
    """A tensor of any number of dimensions, given as nested lists of the same length each."""

    def __init__(self, rows: list[Any]) -> None:
        self.shape: tuple[int, ...] = ()
        values: Any = rows
        while isinstance(values, list):
            self.shape = (*self.shape, len(values))
            values = values[0] if values else None
        self.data = array("f", _flat(rows)).tobytes()

    def __reduce__(self) -> Any:
        strides = [1]
        for length in self.shape[:0:-1]:
            strides.insert(0, strides[0] * length)
        return _rebuild_tensor_v2, (_Storage(self.data), 0, self.shape, tuple(strides), False, OrderedDict())

    def metadata(self) -> list[Any]:
        """What stands before its bytes in msgpack."""
        return [list(self.shape), "float32", "cpu"]


class _Storage:
    def __init__(self, data: bytes) -> None:
        self._data = data

    def __reduce__(self) -> Any:
        count = len(self._data) // 4
        key = struct.pack("<I", len(_KEY)) + _KEY.encode()
        description = (
            b"\x80\x02(X\x07\x00\x00\x00storageq\x00ctorch\nFloatStorage\nq\x01X"
            + key
            + b"q\x02X\x03\x00\x00\x00cpuq\x03M"
            + struct.pack("<H", count)
            + b"Ntq\x04Q."
        )
        file = b"".join((*_SAVED, description, pickle.dumps([_KEY], 2), struct.pack("<q", count), self._data))
        return _load_from_bytes, (file,)


def _flat(value: Any) -> Sequence[float]:
    return [number for item in value for number in _flat(item)] if isinstance(value, list) else [value]


def _rebuild_tensor_v2(*_: Any) -> None:
    """Only its name is needed: nobody reads a tensor here."""


def _load_from_bytes(_: bytes) -> None:
    """As above."""


publish(_rebuild_tensor_v2, "_rebuild_tensor_v2", "torch._utils")
publish(_load_from_bytes, "_load_from_bytes", "torch.storage")
