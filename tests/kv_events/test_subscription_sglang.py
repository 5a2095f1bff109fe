"""KV cache events against SGLang's own code: its events, our reader, and the other way round."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("msgspec")

import msgspec

from sglang_subgw.engine.facts.publications import kv_event_facts
from sglang_subgw.kv_events.replay import replay
from sglang_subgw.kv_events.subscription import KvEventBatch, KvSubscription
from sglang_subgw.simulated.publications import facts as simulated
from sglang_subgw.simulated.publications.kv_publisher import KvPublisher
from support.stock.publications import publishing_modules

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(300)]


@pytest.fixture(scope="session")
def srt() -> Any:
    return publishing_modules()


def test_its_events_are_read_with_every_field(srt: Any, tmp_path: Path) -> None:
    kv = srt.kv
    events = [
        kv.BlockStored([1, -2], None, [3, 4], 2, None, medium="GPU", session_id="s"),
        kv.BlockStored([5], 1, [6], 1, 7, lora_name="a", cache_salt="x"),
        kv.BlockRemoved([8], medium=kv.StorageMedium.CPU),
        kv.AllBlocksCleared(),
    ]
    payload = msgspec.msgpack.encode(kv.KVEventBatch(ts=1.5, events=events, attn_dp_rank=0))
    facts = kv_event_facts({"kv_events_config": '{"publisher": "zmq"}'}, {}, 1, Path("/r"))
    subscription = KvSubscription(facts, facts.sources, since=None, limit=1)
    [rank] = subscription._ranks.values()
    batch = subscription._decoded(rank, 9, payload)
    assert isinstance(batch, KvEventBatch)
    assert (batch.number, batch.timestamp) == (9, 1.5)
    expected = [{"type": type(event).__name__, **msgspec.structs.asdict(event)} for event in events]
    expected[2]["medium"] = "CPU_PINNED"
    assert batch.events == expected


def test_the_simulated_engine_s_events_are_read_by_it(srt: Any, runtime_dir: Path) -> None:
    facts = simulated.kv_event_facts(runtime_dir, 1, {"replay_endpoint": "tcp://*:1"})
    publisher = KvPublisher(facts)
    publisher.start()
    publisher.stored(range(20))
    publisher.publish([{"type": "BlockRemoved", "block_hashes": [3]}])
    publisher.cleared()

    async def read() -> list[bytes]:
        return [batch async for _, batch in replay(facts.sources[0].replay_endpoint, 0, 3)]

    batches = []
    while len(batches) < 3:
        batches = asyncio.run(read())
    publisher.close()
    decoder = msgspec.msgpack.Decoder(srt.kv.KVEventBatch)
    stored, removed, cleared = (decoder.decode(batch).events[0] for batch in batches)
    assert isinstance(stored, srt.kv.BlockStored)
    assert (stored.token_ids, stored.block_size) == (list(range(16)), 16)
    assert removed == srt.kv.BlockRemoved([3])
    assert cleared == srt.kv.AllBlocksCleared()
