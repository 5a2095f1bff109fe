"""docs/engine-api.md against the installed SGLang: every method has its row, and a shard's takes the same."""

from __future__ import annotations

import inspect
import warnings
from collections import Counter
from inspect import Parameter
from types import SimpleNamespace
from typing import Any

import pytest

from sglang_subgw import ShardEngine
from support.api_tables import PAGE, Row, engine_rows, manager_rows, method_of

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(240)]

ENGINE = engine_rows()


@pytest.fixture(scope="session")
def stock() -> Any:
    """SGLang's classes, of the version whose table it is."""
    pytest.importorskip("sglang")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from sglang.srt.entrypoints.engine import Engine
        from sglang.srt.managers import io_struct
        from sglang.srt.managers.tokenizer_manager import TokenizerManager
        from sglang.version import __version__
    if f"the installed SGLang {__version__}:" not in PAGE.read_text():
        pytest.skip(f"the table is not that of the installed SGLang {__version__}")
    return SimpleNamespace(Engine=Engine, TokenizerManager=TokenizerManager, io_struct=io_struct)


def test_each_public_method_of_engine_has_one_row(stock: Any) -> None:
    # What is merely an attribute, such as run_scheduler_process_func, was defined elsewhere.
    public = {
        name
        for name, value in inspect.getmembers(stock.Engine, inspect.isroutine)
        if not name.startswith("_") and "." in value.__qualname__
    }
    assert Counter(row.name for row in ENGINE) == Counter(public)


@pytest.mark.parametrize("row", [row for row in ENGINE if row.form != "–"], ids=str)
def test_parameters_are_those_of_engine(row: Row, stock: Any) -> None:
    expected = _parameters(getattr(stock.Engine, row.name))
    for name in [row.method, f"async_{row.method}"] if row.form == "both" else [row.method]:
        _check_begins_with(_parameters(method_of(ShardEngine, name)), expected)


@pytest.mark.parametrize("row", manager_rows(), ids=str)
def test_parameters_are_those_of_the_tokenizer_manager(row: Row, stock: Any) -> None:
    expected = _parameters(getattr(stock.TokenizerManager, row.name))
    if [parameter.name for parameter in expected] == ["obj"]:
        fields = inspect.signature(getattr(stock.io_struct, str(expected[0].annotation))).parameters
        envelope = inspect.signature(stock.io_struct.BaseReq).parameters
        expected = [
            # A struct's fields are keywords; here they may be given by position, too.
            field.replace(kind=Parameter.POSITIONAL_OR_KEYWORD)
            for name, field in fields.items()
            if name not in envelope
        ]
    _check_begins_with(_parameters(method_of(ShardEngine, row.method)), expected)


def _parameters(function: Any) -> list[Parameter]:
    return list(inspect.signature(function).parameters.values())[1:]


def _check_begins_with(actual: list[Parameter], expected: list[Parameter]) -> None:
    """Names, order, kinds and defaults; a shard may take more, if nobody has to give it."""
    assert [_plain(parameter) for parameter in actual[: len(expected)]] == [_plain(parameter) for parameter in expected]
    for parameter in actual[len(expected) :]:
        assert parameter.default is not Parameter.empty or parameter.kind is Parameter.VAR_KEYWORD


def _plain(parameter: Parameter) -> tuple[Any, ...]:
    return parameter.name, parameter.kind, parameter.default
