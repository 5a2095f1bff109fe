"""docs/engine-api.md against what a shard has."""

from __future__ import annotations

import inspect

import pytest

from sglang_subgw import ShardEngine
from support.api_tables import Row, engine_rows, manager_rows, method_of

ENGINE = engine_rows()
MANAGER = manager_rows()
HERE = [row for row in ENGINE + MANAGER if row.form != "–"]


def test_rows_are_filled_in_and_in_order() -> None:
    for rows in (ENGINE, MANAGER):
        names = [row.name for row in rows]
        assert names == sorted(names)
        for row in rows:
            assert row.form in ("both", "coroutine", "plain", "–"), row
            assert row.sides == {"–"} if row.form == "–" else row.sides <= {"shard", "workers", "engine"}, row
            assert row.text, row
            assert row.since in [f"0.5.{patch}" for patch in range(19, 24)], row


@pytest.mark.parametrize("row", HERE, ids=str)
def test_a_shard_has_it_in_the_forms_that_the_table_says(row: Row) -> None:
    if row.form != "coroutine":
        assert not inspect.iscoroutinefunction(method_of(ShardEngine, row.method))
    if row.form == "plain":
        assert not hasattr(ShardEngine, f"async_{row.method}")
    else:
        coroutine = method_of(ShardEngine, f"async_{row.method.removeprefix('async_')}")
        assert inspect.iscoroutinefunction(coroutine)


@pytest.mark.parametrize("row", [row for row in HERE if row.form == "both"], ids=str)
def test_both_forms_take_the_same(row: Row) -> None:
    blocking, coroutine = (method_of(ShardEngine, name) for name in (row.method, f"async_{row.method}"))
    assert inspect.signature(blocking).parameters == inspect.signature(coroutine).parameters


@pytest.mark.parametrize("row", [row for row in ENGINE if row.form == "–"], ids=str)
def test_what_a_shard_is_said_not_to_have_is_not_there(row: Row) -> None:
    assert not hasattr(ShardEngine, row.method)
