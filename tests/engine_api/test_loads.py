"""`ShardEngine.get_loads`: sections by name, what the engine does, and an SGLang that keeps none."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path

import pytest

from sglang_subgw.errors import EngineUnavailable, RequestRejected
from support.shard_values import Shard, with_shard


def test_sections_are_asked_for_by_name(runtime_dir: Path) -> None:
    async def scenario(shard: Shard) -> None:
        engine = shard.engine
        [everything] = await engine.async_get_loads()
        assert {"memory", "disaggregation", "queues"} <= everything.keys()
        assert await engine.async_get_loads(["all", "weather"]) == [everything]
        [core] = await engine.async_get_loads(["core"])
        assert core == {name: value for name, value in everything.items() if not isinstance(value, dict)}
        [some] = await engine.async_get_loads(include=["disagg", "spec"], dp_rank=0)
        assert some == {**core, "disaggregation": everything["disaggregation"]}
        assert await engine.async_get_loads(dp_rank=1) == await engine.async_get_loads(dp_rank=-1) == []
        assert await asyncio.to_thread(engine.get_loads, ["core"]) == [core]
        for include, rank, said in ((["weather"], None, "weather"), ("core", None, "a list"), (None, True, "True")):
            with pytest.raises(RequestRejected, match=said):
                await engine.async_get_loads(include, rank)  # type: ignore[arg-type]

    with_shard(runtime_dir, scenario)


def test_they_follow_what_the_engine_does(runtime_dir: Path) -> None:
    async def scenario(shard: Shard) -> None:
        shard.simulated.set_faults(stall=True)
        answer = asyncio.ensure_future(shard.engine.async_generate("abcdef", {"max_new_tokens": 2}))
        while (load := (await shard.engine.async_get_loads())[0])["num_waiting_reqs"] != 1:
            await asyncio.sleep(0.005)
        assert (load["num_total_tokens"], load["queues"]["waiting"]) == (6, 1)
        shard.simulated.set_faults(stall=False)
        await answer
        while (await shard.engine.async_get_loads())[0]["num_waiting_reqs"]:
            await asyncio.sleep(0.005)

    with_shard(runtime_dir, scenario)


def test_an_sglang_that_keeps_none_is_named(runtime_dir: Path) -> None:
    async def scenario(shard: Shard) -> None:
        shard.worker.contract = dataclasses.replace(shard.worker.contract, loads=None)
        with pytest.raises(EngineUnavailable, match="SGLang 0.5.23 keeps no load snapshots") as caught:
            await shard.engine.async_get_loads()
        assert caught.value.status == 501

    with_shard(runtime_dir, scenario)
