"""`ShardEngine.kv_events`: asynchronous iterator, context, plain iterator; what it refuses, how it ends."""

from __future__ import annotations

import asyncio
import dataclasses
import sys
from pathlib import Path
from typing import Any

import pytest

from sglang_subgw.contract import KvEventFacts
from sglang_subgw.errors import EngineUnavailable, RequestRejected
from sglang_subgw.kv_events.subscription import KvEventBatch
from support.shard_values import Shard, with_shard

REPLAY = {"publisher": "zmq", "replay_endpoint": "tcp://*:1"}
CLEARED = [{"type": "AllBlocksCleared"}]


def publish(shard: Shard) -> None:
    publisher = shard.simulated.publications.kv_events
    assert publisher is not None
    publisher.publish(CLEARED)


def test_it_is_an_iterator_with_a_beginning_of_its_own(runtime_dir: Path) -> None:
    async def scenario(shard: Shard) -> None:
        publish(shard)
        publish(shard)
        numbers = []
        async for batch in shard.engine.kv_events(since=0):
            assert isinstance(batch, KvEventBatch)
            numbers.append(batch.number)
            if batch.number == 1:
                publish(shard)
            if batch.number == 2:
                break
        assert numbers == [0, 1, 2]
        # asyncio closes an iterator that was left, a few turns later.
        while shard.worker.endings:
            await asyncio.sleep(0)

    with_shard(runtime_dir, scenario, kv_events=REPLAY)


def test_it_can_be_entered_before_it_is_read(runtime_dir: Path) -> None:
    async def scenario(shard: Shard) -> None:
        async with shard.engine.kv_events() as one, shard.engine.kv_events(0) as other:
            await shard.engine.async_generate("x" * 16, {"max_new_tokens": 1})
            first, second = await anext(aiter(one)), await anext(aiter(other))
            assert isinstance(first, KvEventBatch)
            assert first == second
            assert first.events[0]["type"] == "BlockStored"

    with_shard(runtime_dir, scenario, kv_events=REPLAY)


def test_it_is_a_plain_iterator_for_other_threads(runtime_dir: Path) -> None:
    async def scenario(shard: Shard) -> None:
        publish(shard)

        def first() -> Any:
            return next(iter(shard.engine.kv_events(since=0)))

        batch = await asyncio.to_thread(first)
        assert (batch.number, batch.events) == (0, CLEARED)
        with pytest.raises(RuntimeError, match="would block the event loop"):
            next(iter(shard.engine.kv_events()))

    with_shard(runtime_dir, scenario, kv_events=REPLAY)


def test_it_ends_with_the_worker(runtime_dir: Path) -> None:
    async def scenario(shard: Shard) -> None:
        async with shard.engine.kv_events() as events:
            reading = asyncio.ensure_future(anext(aiter(events)))
            await asyncio.sleep(0)
            shard.engine.fail_all(EngineUnavailable("the engine is gone"), for_good=True)
            with pytest.raises(EngineUnavailable, match="the engine is gone"):
                await reading
        with pytest.raises(EngineUnavailable, match="the engine is gone"):
            await shard.engine.kv_events().__aenter__()

    with_shard(runtime_dir, scenario, kv_events=REPLAY)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"dp_rank": 1}, "no dp_rank 1 that publishes KV events, only 0"),
        ({"dp_rank": True}, "no dp_rank True"),
        ({"buffer": 0}, "buffer must be an integer from 1 up, not 0"),
        ({"since": -1}, "since must be a batch's number, from 0 up, not -1"),
        ({"since": 2**63}, "since must be a batch's number"),
        ({"since": 0}, "since needs a replay_endpoint"),
    ],
    ids=str,
)
def test_what_can_t_be_is_refused(runtime_dir: Path, arguments: dict[str, Any], said: str) -> None:
    async def scenario(shard: Shard) -> None:
        with pytest.raises(RequestRejected, match=said):
            shard.engine.kv_events(**arguments)

    with_shard(runtime_dir, scenario, kv_events={"publisher": "zmq"})


def test_an_engine_side_that_does_not_answer_is_told(runtime_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sglang_subgw.kv_events.subscription._ANSWER_SECONDS", 0.05)

    async def scenario(shard: Shard) -> None:
        facts = dataclasses.replace(shard.worker.contract.kv_events, socket=f"ipc://{runtime_dir}/nobody")
        shard.worker.contract = dataclasses.replace(shard.worker.contract, kv_events=facts)
        with pytest.raises(EngineUnavailable, match="did not answer a subscription to KV events within 0.05 s"):
            await anext(aiter(shard.engine.kv_events()))

    with_shard(runtime_dir, scenario, kv_events={"publisher": "zmq"})


def test_a_shard_that_can_t_load_pyzmq_says_so(runtime_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(shard: Shard) -> None:
        with monkeypatch.context() as context:
            # The module that needs it: others of this process may import zmq meanwhile.
            context.setitem(sys.modules, "sglang_subgw.kv_events.subscription", None)
            with pytest.raises(EngineUnavailable, match="KV events need pyzmq, which this shard can't load: "):
                shard.engine.kv_events()
        async with shard.engine.kv_events():
            pass

    with_shard(runtime_dir, scenario, kv_events=REPLAY)


def test_an_older_sglangs_events_are_arrays() -> None:
    from sglang_subgw.kv_events.subscription import KvSubscription
    from sglang_subgw.simulated.publications.facts import kv_event_facts

    facts: KvEventFacts = kv_event_facts(Path("/nowhere"), 1, {})
    subscription = KvSubscription(facts, facts.sources, since=None, limit=1)
    assert subscription._event(["BlockRemoved", [1, 2]]) == {
        "type": "BlockRemoved",
        "block_hashes": [1, 2],
        "medium": None,
    }
    assert subscription._event({"type": "Invented", "x": 1}) == {"type": "Invented", "x": 1}
