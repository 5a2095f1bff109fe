"""The examples, importable as they are from their own directory."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def examples(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Their directory; what was imported from it is forgotten afterwards."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    # For commands, which are started somewhere else.
    monkeypatch.setenv("PYTHONPATH", str(EXAMPLES), prepend=":")
    yield EXAMPLES
    for name in [name for name in sys.modules if (EXAMPLES / f"{name}.py").exists()]:
        del sys.modules[name]
