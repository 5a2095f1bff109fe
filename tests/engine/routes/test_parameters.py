"""A JSON object as a method's arguments: what fits is passed on as the annotations say, the rest is refused by name."""

from __future__ import annotations

import inspect
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("msgspec")

from sglang_subgw.engine.routes.parameters import Parameters
from sglang_subgw.errors import ConfigError, RequestRejected
from support.admin_fakes import EncodeReq, Engine, GenerateReq, Manager, OpenSessionReq, PauseReq

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


def method_of(owner: type, name: str) -> Any:
    """Bound to nothing that is looked at."""
    return getattr(object.__new__(owner), name)


def read(owner: type, name: str, **values: Any) -> dict[str, Any]:
    return Parameters(method_of(owner, name)).read(values)


async def annotated(
    number: int, ratio: float = 0.5, ids: list[list[int]] | list[int] | None = None, raw: bytes = b"", other: Any = None
) -> None: ...


class Unknowable:
    def method(self, tensor: Tensor, *rest: Any, flag: bool = False, **more: Any) -> None:  # noqa: F821
        """An annotation that only a type checker knows."""


def test_keys_become_keyword_arguments_of_the_annotated_kind() -> None:
    parameters = Parameters(annotated)
    assert parameters.read({"number": 3, "ratio": 1, "ids": [[1], [2]], "raw": "AAE=", "other": [{}]}) == {
        "number": 3,
        "ratio": 1.0,
        "ids": [[1], [2]],
        "raw": b"\x00\x01",
        "other": [{}],
    }
    assert parameters.read({"number": 3, "ids": [1, 2]})["ids"] == [1, 2]
    assert parameters.read({"number": 3, "ids": None})["ids"] is None
    assert parameters.names == {"number": True, "ratio": False, "ids": False, "raw": False, "other": False}
    assert parameters.needed


@pytest.mark.parametrize(
    ("values", "param", "message"),
    [
        ({}, "number", "Field 'number' is required."),
        ({"number": "3"}, "number", "Field 'number' is wrong: Expected `int`, got `str`."),
        ({"number": True}, "number", "Field 'number' is wrong: Expected `int`, got `bool`."),
        ({"number": None}, "number", "Field 'number' is wrong: Expected `int`, got `null`."),
        ({"number": 3, "ids": ["a"]}, "ids", "Field 'ids' must be list[list[int]] | list[int] | None."),
        ({"number": 3, "ids": {}}, "ids", "Field 'ids' must be list[list[int]] | list[int] | None."),
        ({"number": 3, "raw": "?"}, "raw", "Field 'raw' is wrong: Invalid base64 encoded string."),
        ({"number": 3, "ratioo": 1}, "ratioo", "Unknown field 'ratioo' of this method. Did you mean 'ratio'?"),
        ({"number": 3, "self": 1}, "self", "Unknown field 'self' of this method. There is number, ratio, ids, raw,"),
        ({"number": 3, "x" * 200: 1}, "x" * 100 + "…", "Unknown field '" + "x" * 100 + "…' of this method."),
    ],
)
def test_what_does_not_fit_is_refused_by_its_name(values: dict[str, Any], param: str, message: str) -> None:
    with pytest.raises(RequestRejected, match=re.escape(message)) as refusal:
        Parameters(annotated).read(values)
    assert (refusal.value.param, refusal.value.status) == (param, 400)


def test_an_open_method_takes_what_it_does_not_name() -> None:
    assert read(Engine, "start_profile", output_dir="/tmp", num_steps=3) == {"output_dir": "/tmp", "num_steps": 3}
    unknowable = Parameters(Unknowable().method)
    assert unknowable.read({"tensor": [1], "flag": True, "x": 1}) == {"tensor": [1], "flag": True, "x": 1}
    with pytest.raises(RequestRejected, match="'tensor' is required"):
        unknowable.read({"x": 1})
    with pytest.raises(RequestRejected, match="'flag' is wrong"):
        unknowable.read({"tensor": 1, "flag": "yes"})


def test_keys_become_the_request_object() -> None:
    assert read(Manager, "pause_generation", mode="in_place") == {"obj": PauseReq(mode="in_place")}
    assert read(Manager, "pause_generation") == {"obj": PauseReq()}
    assert read(Manager, "start_profile") == {}
    assert read(Manager, "start_profile", rid="a") == {"req": PauseReq(rid="a")}
    assert read(Manager, "open_session", capacity_of_str_len=5) == {"obj": OpenSessionReq(capacity_of_str_len=5)}
    assert read(Manager, "generate_request", text=["a"], stream=True) == {"obj": GenerateReq(text=["a"], stream=True)}
    assert read(Manager, "generate_request", image="a") == {"obj": EncodeReq(image="a")}


@pytest.mark.parametrize(
    ("name", "values", "param", "message"),
    [
        ("pause_generation", {"mode": "stop"}, "mode", "Field 'mode' is wrong: Invalid enum value 'stop'."),
        (
            "pause_generation",
            {"obj": {}},
            "obj",
            "Unknown field 'obj' of PauseReq. There is rid, mode.",
        ),
        ("pause_generation", {"moed": "abort"}, "moed", "Unknown field 'moed' of PauseReq. Did you mean 'mode'?"),
        ("pause_generation", {"http_worker_ipc": "ipc:///x"}, "http_worker_ipc", "can't be given: it is internal"),
        ("open_session", {}, "capacity_of_str_len", "Field 'capacity_of_str_len' is required."),
        ("open_session", {"capacity_of_str_len": 0}, None, "OpenSessionReq can't be made of this: capacity_of_str_len"),
        ("open_session", {"capacity_of_str_len": 1, "request": 1}, "request", "Unknown field 'request'"),
        ("generate_request", {"text": 5}, "text", "Field 'text' is wrong"),
        ("generate_request", {"image": "a", "text": "a"}, "image", "Unknown field 'image' of GenerateReq."),
    ],
)
def test_a_request_object_that_can_t_be_made_is_refused(
    name: str, values: dict[str, Any], param: str | None, message: str
) -> None:
    with pytest.raises(RequestRejected, match=re.escape(message)) as refusal:
        read(Manager, name, **values)
    assert refusal.value.param == param


def test_what_a_request_object_needs() -> None:
    assert Parameters(method_of(Manager, "open_session")).needed
    assert not Parameters(method_of(Manager, "pause_generation")).needed
    names = Parameters(method_of(Manager, "open_session")).names
    assert names == {"rid": False, "capacity_of_str_len": True, "session_id": False, "timeout": False}


def test_a_method_without_a_signature_is_refused() -> None:
    with pytest.raises(ConfigError, match="update can't be called by keywords: nothing tells its parameters"):
        Parameters({}.update)


@given(st.dictionaries(st.sampled_from(["number", "ratio", "ids", "raw", "other", "mode", "x", ""]), json_values))
def test_any_object_is_arguments_that_fit_or_a_refusal(values: dict[str, Any]) -> None:
    for method in (annotated, method_of(Manager, "pause_generation"), method_of(Manager, "generate_request")):
        try:
            arguments = Parameters(method).read(values)
        except RequestRejected:
            continue
        inspect.signature(method).bind(**arguments)
