"""What the start is doing and for how long: one changing line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import threading
import time
from typing import Self, TextIO

_REFRESH_SECONDS = 0.2


class Progress:
    """A context in which `phase` names what is going on now."""

    def __init__(self, stream: TextIO = sys.stderr) -> None:
        self._stream = stream
        self._live = stream.isatty()
        self._text = ""
        self._phase_started = self._started = time.monotonic()
        self._end = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._refresh, name="subgw-progress")

    def phase(self, text: str) -> None:
        """Begin the next phase; the one before it is over."""
        with self._lock:
            self._finish_line()
            self._text = text
            self._phase_started = time.monotonic()
            if self._live:
                self._draw()
            else:
                self._write(f"{self._clock()} {text} …\n")

    @property
    def seconds(self) -> float:
        """Since the start."""
        return time.monotonic() - self._started

    def __enter__(self) -> Self:
        if self._live:
            self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._end.set()
        if self._live:
            self._thread.join()
        with self._lock:
            self._finish_line()
            self._text = ""

    def _refresh(self) -> None:
        while not self._end.wait(_REFRESH_SECONDS):
            with self._lock:
                if self._text:
                    self._draw()

    def _draw(self) -> None:
        self._write(f"\r\033[K{self._clock()} {self._text} … {time.monotonic() - self._phase_started:.0f} s")

    def _finish_line(self) -> None:
        if self._live and self._text:
            took = time.monotonic() - self._phase_started
            self._write(f"\r\033[K{self._clock()} {self._text}: {took:.1f} s\n")

    def _clock(self) -> str:
        return f"[{self.seconds:5.1f} s]"

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()
