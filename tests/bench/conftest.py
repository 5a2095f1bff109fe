"""Fixtures for the bench's tests: its processes, ended with the test."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from sglang_subgw.bench.system.child import Child
from sglang_subgw.engine.scripted.pace import Pace


@pytest.fixture
def directory() -> Iterator[Path]:
    """A short path."""
    path = Path(tempfile.mkdtemp(prefix="sgbt-"))
    yield path
    shutil.rmtree(path)


@pytest.fixture
def pace(directory: Path) -> Iterator[Pace]:
    """A step every 5 ms."""
    with Pace(directory / "pace") as made:
        made.seconds = 0.005
        yield made


@pytest.fixture
def make_child(directory: Path) -> Iterator[Callable[..., Child]]:
    """Starts processes of the bench by their module's name."""
    with ExitStack() as ends:

        def make(module: str, **settings: Any) -> Child:
            return ends.enter_context(Child(module, settings, log=directory / f"{module}.log"))

        yield make
