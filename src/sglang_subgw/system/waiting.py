"""How long the main thread may wait without a look at what signals have left."""

from __future__ import annotations

from typing import Final

SIGNAL_SECONDS: Final = 0.5
"""A signal that comes between Python's last look and the beginning of a wait is handled at the end of that wait."""
