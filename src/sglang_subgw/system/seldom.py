"""Log lines for what may happen a thousand times a second."""

from __future__ import annotations

import logging
import time
from typing import Final

_SECONDS: Final = 10.0


class Seldom:
    """Logs one error line at once, and then at most one in ten seconds that says how many there would have been."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._next = 0.0
        self._count = 0

    def error(self, message: str, *args: object) -> None:
        """The line, or one more that is only counted."""
        self._count += 1
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + _SECONDS
        times = f" ({self._count} times by now)" if self._count > 1 else ""
        self._log.error(f"{message}%s", *args, times)
