"""The blocking forms that are made of coroutines: what is seen of them, and whom they call."""

from __future__ import annotations

import asyncio
import inspect
import pickle
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_type_hints

import pytest

from sglang_subgw import ShardEngine
from sglang_subgw.engine_api.base import Output, Outputs
from sglang_subgw.worker.answers.outputs import FlushCacheReqOutput
from support.shard_values import Shard, with_shard

MADE = sorted(
    name
    for name, method in inspect.getmembers(ShardEngine, inspect.isfunction)
    if hasattr(ShardEngine, f"async_{name}") and name not in ("generate", "get_model_info")
)


@pytest.mark.parametrize("name", MADE)
def test_it_is_a_function_like_its_coroutine_but_for_its_name(name: str) -> None:
    method, coroutine = getattr(ShardEngine, name), getattr(ShardEngine, f"async_{name}")
    assert inspect.signature(method) == inspect.signature(coroutine)
    assert get_type_hints(method) == get_type_hints(coroutine)
    assert method.__qualname__ == coroutine.__qualname__.replace("async_", "")
    assert method.__module__ == coroutine.__module__
    assert method.__doc__ == f"`async_{name}` for other threads than the loop's."
    assert pickle.loads(pickle.dumps(method)) is method


@pytest.mark.parametrize("name", [*MADE, "generate"])
def test_nothing_takes_it_for_a_coroutine(name: str) -> None:
    method = getattr(ShardEngine, name)
    assert inspect.unwrap(method) is method
    assert not inspect.iscoroutinefunction(method)


def test_generate_has_its_own_result() -> None:
    assert get_type_hints(ShardEngine.generate)["return"] == Outputs | Iterator[Output]
    assert inspect.signature(ShardEngine.generate).return_annotation == "Outputs | Iterator[Output]"


def test_it_calls_the_object_s_own_coroutine(runtime_dir: Path) -> None:
    async def scenario(shard: Shard) -> None:
        async def flush(timeout_s: float | None = None) -> FlushCacheReqOutput:
            return FlushCacheReqOutput(True, f"{timeout_s}")

        shard.engine.async_flush_cache = flush  # type: ignore[method-assign]
        assert (await asyncio.to_thread(shard.engine.flush_cache, 1.5)).message == "1.5"
        with pytest.raises(TypeError, match="unexpected keyword argument 'seconds'"):
            await asyncio.to_thread(shard.engine.flush_cache, seconds=1)  # type: ignore[call-arg]

    with_shard(runtime_dir, scenario)


def test_the_older_name_of_a_rank_is_warned_of_where_generate_is_called(runtime_dir: Path) -> None:
    parameters = list(inspect.signature(ShardEngine.generate).parameters.values())[1:]
    until = [parameter.name for parameter in parameters].index("data_parallel_rank")
    given: list[Any] = ["a", {"max_new_tokens": 1}, *(parameter.default for parameter in parameters[2:until])]

    async def scenario(shard: Shard) -> None:
        def blocking() -> list[Any]:
            return [
                shard.engine.generate(*given, 1, rid="mine", cache_salt="salt", return_text_in_logprobs=True),
                shard.engine.generate(*given, data_parallel_rank=1, rid="mine"),
                shard.engine.generate("a", {"max_new_tokens": 1}, data_parallel_rank=1, rid="mine"),
            ]

        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            answers = await asyncio.to_thread(blocking)
        assert [answer["meta_info"]["id"] for answer in answers] == ["mine"] * 3
        assert [request.routed_dp_rank for request in shard.simulated.requests()] == [1] * 3
        assert [Path(warning.filename) for warning in caught] == [Path(__file__)] * 3

        def older_is_none() -> Any:
            return shard.engine.generate(*given, None, "header", "mine")

        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert (await asyncio.to_thread(older_is_none))["meta_info"]["id"] == "mine"

    with_shard(runtime_dir, scenario, features={"num_dp_ranks": 2})
