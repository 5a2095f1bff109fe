"""The tests' programs, which run in processes of their own."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

IMPORTABLE: Final = {"PYTHONPATH": str(Path(__file__).parents[1])}
"""The environment in which a process can import `support`."""


def program(name: str, *arguments: str) -> list[str]:
    """The command that runs the module of that name in `support`; it wants what `IMPORTABLE` has."""
    return [sys.executable, "-m", f"support.{name}", *arguments]
