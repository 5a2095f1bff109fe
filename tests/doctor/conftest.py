"""The command ends with its process; here others' tests come after it."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def log_level_kept() -> Iterator[None]:
    """The command silences the log."""
    logger = logging.getLogger("sglang_subgw")
    before = logger.level
    yield
    logger.setLevel(before)
