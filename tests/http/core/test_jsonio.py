"""JSON: both implementations agree on what is valid and on what they write."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_subgw.http.core import jsonio

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)


@given(values.filter(lambda value: "\\ud" not in repr(value)))
def test_what_one_writes_the_other_reads(value: Any) -> None:
    try:
        written = jsonio.dumps(value)
    except UnicodeEncodeError:
        return
    assert jsonio._standard_loads(written) == value
    assert jsonio.loads(jsonio._standard_dumps(value)) == value


@pytest.mark.parametrize("loads", [jsonio.loads, jsonio._standard_loads])
@pytest.mark.parametrize("data", [b"NaN", b"Infinity", b"1e999", b'"\\ud800"', b'"\xff"', b"", b"{", b"1" * 5000])
def test_invalid(loads: Any, data: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        loads(data)


@pytest.mark.parametrize("dumps", [jsonio.dumps, jsonio._standard_dumps])
def test_written(dumps: Any) -> None:
    value = {"a": [float("nan"), float("inf"), (1, None)], 2: "é"}
    assert dumps(value) == '{"a":[null,null,[1,null]],"2":"é"}'.encode()
