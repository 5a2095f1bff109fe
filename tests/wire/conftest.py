"""Fixtures of the wire's tests: the facts of an engine, in both codecs."""

from __future__ import annotations

import pytest

from sglang_subgw.wire.codec import Codec, codec_for
from support.wire_values import wire_facts


@pytest.fixture(params=["pickle", "msgpack"])
def codec_name(request: pytest.FixtureRequest) -> str:
    if request.param == "msgpack":
        pytest.importorskip("msgspec")
    name: str = request.param
    return name


@pytest.fixture
def codec(codec_name: str) -> Codec:
    return codec_for(wire_facts(codec_name))


@pytest.fixture
def pickle_codec() -> Codec:
    return codec_for(wire_facts("pickle"))


@pytest.fixture
def msgpack_codec() -> Codec:
    pytest.importorskip("msgspec")
    return codec_for(wire_facts("msgpack"))
