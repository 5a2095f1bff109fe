"""The simulated engine's msgpack is byte by byte msgspec's."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_subgw.simulated.wire.pack import pack

EDGES = [edge + near for bits in (5, 7, 8, 15, 16, 31, 32, 63) for edge in (2**bits, -(2**bits)) for near in (-1, 0, 1)]
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary()
    | st.sampled_from(["x" * 31, "x" * 32, "x" * 255, "x" * 256, b"x" * 256]),
    lambda inner: st.lists(inner, max_size=20) | st.dictionaries(st.text(), inner, max_size=20),
    max_leaves=20,
)


@given(value=VALUES)
def test_it_packs_as_msgspec_does(value: Any) -> None:
    msgspec = pytest.importorskip("msgspec")
    assert pack(value) == msgspec.msgpack.encode(value)


@pytest.mark.parametrize("value", [v for v in EDGES if v >= -(2**63)] + ["x" * 65536, b"x" * 65536, [0] * 65536])
def test_it_packs_every_length_as_msgspec_does(value: Any) -> None:
    msgspec = pytest.importorskip("msgspec")
    assert pack(value) == msgspec.msgpack.encode(value)


@pytest.mark.parametrize("value", [2**64, -(2**63) - 1])
def test_an_integer_too_long_for_the_wire_is_refused(value: int) -> None:
    with pytest.raises(OverflowError, match=str(value)):
        pack(value)
