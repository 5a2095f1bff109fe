"""Results as JSON: what SGLang gives back has a form in it, and what has none is named."""

from __future__ import annotations

import dataclasses
import enum
import json
import uuid
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("msgspec")

from sglang_subgw.engine.routes.results import plain
from sglang_subgw.errors import RequestError
from support.admin_fakes import Answer, Color, PauseReq

scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
json_values = st.recursive(scalars, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=10)
Point = namedtuple("Point", "x y")


class Level(enum.IntEnum):
    LOW = 1


@dataclasses.dataclass
class Outer:
    inner: Answer
    where: Path = Path("/a")


class Strange:
    pass


@given(json_values)
def test_json_stays_as_it_is(value: Any) -> None:
    assert plain(value) == value


@given(st.recursive(scalars | st.binary() | st.sampled_from(Color), lambda inner: st.tuples(inner, inner)))
def test_everything_plain_can_be_written(value: Any) -> None:
    json.dumps(plain(value))


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (Answer(success=True), {"success": True, "ids": [1, 2], "data": "AAE=", "color": "red"}),
        (PauseReq(), {"rid": None, "http_worker_ipc": None, "mode": "abort"}),
        (Outer(Answer(False, ())), {"inner": plain(Answer(False, ())), "where": "/a"}),
        (Point(1, (2, 3)), [1, [2, 3]]),
        ({Color.RED: {1}, 2: frozenset(), None: b""}, {"red": [1], "2": [], "null": ""}),
        ([Level.LOW, memoryview(b"a"), bytearray()], [1, "YQ==", ""]),
        (uuid.UUID(int=1), "00000000-0000-0000-0000-000000000001"),
    ],
)
def test_what_methods_give_back(value: Any, expected: Any) -> None:
    result = plain(value)
    assert result == expected
    assert json.loads(json.dumps(result)) == expected


@pytest.mark.parametrize(
    ("value", "named"),
    [
        (Strange(), f"type {__name__}.Strange, which has no JSON form"),
        ([{"a": (object(),)}], "type builtins.object, which has no JSON form"),
        (Strange, "type builtins.type, which has no JSON form"),
        ({(1, 2): 3}, "an object with a key of type tuple"),
    ],
)
def test_what_has_no_form_is_named(value: Any, named: str) -> None:
    with pytest.raises(RequestError, match=named) as error:
        plain(value)
    assert error.value.status == 500


def test_what_contains_itself_is_told() -> None:
    value: list[Any] = []
    value.append(value)
    with pytest.raises(RequestError, match="contains itself"):
        plain(value)


def test_arrays_and_their_scalars_are_lists_and_numbers() -> None:
    np = pytest.importorskip("numpy")
    value = {
        "a": np.arange(4, dtype=np.int32).reshape(2, 2),
        "b": np.float32(0.5),
        "c": np.bool_(True),
        "d": np.int64(7),
    }
    assert json.loads(json.dumps(plain(value))) == {"a": [[0, 1], [2, 3]], "b": 0.5, "c": True, "d": 7}
