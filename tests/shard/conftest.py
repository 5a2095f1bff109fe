"""Fixtures of the shard's tests."""

from __future__ import annotations

import pytest


@pytest.fixture(params=["pickle", "msgpack"])
def codec(request: pytest.FixtureRequest) -> str:
    if request.param == "msgpack":
        pytest.importorskip("msgspec")
    name: str = request.param
    return name


@pytest.fixture
def needs_tokenizers() -> None:
    pytest.importorskip("tokenizers")
