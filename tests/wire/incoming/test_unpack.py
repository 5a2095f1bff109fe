"""Plain msgpack: the reader for Pythons without msgspec gives what msgspec gives."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_subgw.errors import WireError
from sglang_subgw.wire.incoming.unpack import unpack, unpack_plain

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
LONG: dict[str, Any] = {
    "text": "x" * 65536,
    "bytes": b"x" * 65536,
    "list": [0] * 65536,
    "map": dict.fromkeys(map(str, range(65536))),
}


@given(value=VALUES)
def test_what_msgspec_packs_is_read_back(value: Any) -> None:
    msgspec = pytest.importorskip("msgspec")
    data = msgspec.msgpack.encode(value)
    assert unpack_plain(data) == unpack(data) == value


@pytest.mark.parametrize("kind", LONG)
def test_what_needs_a_long_length_is_read_back(kind: str) -> None:
    msgspec = pytest.importorskip("msgspec")
    assert unpack_plain(msgspec.msgpack.encode(LONG[kind])) == LONG[kind]


def test_a_single_precision_number_is_read() -> None:
    assert unpack_plain(b"\xca\x3f\xc0\x00\x00") == unpack(b"\xca\x3f\xc0\x00\x00") == 1.5


@given(data=st.binary(max_size=40))
def test_any_bytes_are_read_alike_or_refused(data: bytes) -> None:
    msgspec = pytest.importorskip("msgspec")
    try:
        expected = msgspec.msgpack.decode(data)
    except Exception:
        expected = None
    try:
        got = unpack_plain(data)
    except WireError:
        return
    assert repr(got) == repr(expected)


@pytest.mark.parametrize("read", [unpack, unpack_plain])
@pytest.mark.parametrize(
    "data", [b"", b"\x92\x01", b"\xa2x", b"\xa1\xff", b"\x01\x01", b"\xc1", b"\xcb\x00", b"\x91" * 9999]
)
def test_what_is_no_value_is_refused(read: Any, data: bytes) -> None:
    with pytest.raises(WireError, match=f"^{len(data)} bytes of msgpack can't be read"):
        read(data)
