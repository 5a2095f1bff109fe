"""How far a bench is: one changing line with a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from typing import Self, TextIO

_WIDTH = 24


class ProgressBar:
    """A context in which `turn` and `phase` say what goes on."""

    def __init__(self, stream: TextIO = sys.stderr) -> None:
        self._stream = stream
        self._live = stream.isatty()
        self._started = time.monotonic()

    def phase(self, text: str) -> None:
        """Something whose share of the whole isn't known."""
        self._write(f"{text} …")

    def turn(self, text: str, number: int, total: int) -> None:
        """The next of so many."""
        filled = _WIDTH * number // total
        self._write(f"{'█' * filled}{'░' * (_WIDTH - filled)} {number + 1}/{total}  {text}")

    def clear(self) -> None:
        """Make room for output."""
        if self._live:
            self._stream.write("\r\033[K")
            self._stream.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.clear()

    def _write(self, text: str) -> None:
        line = f"[{time.monotonic() - self._started:5.0f} s] {text}"
        self._stream.write(f"\r\033[K{line}" if self._live else f"{line}\n")
        self._stream.flush()
