"""How often a simulated engine makes a step: one number in a mapped file, set by the bench, read at every step."""

from __future__ import annotations

import mmap
import os
import struct
from pathlib import Path
from typing import Final, Self

_SECONDS: Final = struct.Struct("<d")


class Pace:
    """The step interval in seconds; 0 is as fast as it goes."""

    def __init__(self, path: str | Path) -> None:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            os.ftruncate(descriptor, _SECONDS.size)
            self._memory = mmap.mmap(descriptor, _SECONDS.size)
        finally:
            os.close(descriptor)

    @property
    def seconds(self) -> float:
        """The interval now."""
        value: float = _SECONDS.unpack_from(self._memory)[0]
        return value

    @seconds.setter
    def seconds(self, value: float) -> None:
        _SECONDS.pack_into(self._memory, 0, value)

    def close(self) -> None:
        """Unmap; the file stays."""
        self._memory.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
