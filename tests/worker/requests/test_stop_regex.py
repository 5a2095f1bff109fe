"""Stop patterns: the length that SGLang gives them."""

from __future__ import annotations

import pytest

from sglang_subgw.worker.requests.stop_regex import max_length


@pytest.mark.parametrize(
    ("pattern", "length"),
    [("abc", 3), (r"\d[a-z].", 3), ("(ab|c)", 2), ("^a$", 1), ("a*", 2**30), ("a{2,4}?", 4), ("(?=a)b", 2**30 + 1)],
)
def test_a_stop_pattern_has_sglangs_length(pattern: str, length: int) -> None:
    assert max_length(pattern) == length
