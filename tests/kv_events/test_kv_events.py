"""KV cache events on their way from publishers to readers: in order, what is missing marked, subscribed to once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from sglang_subgw.contract import KvEventFacts
from sglang_subgw.errors import EngineStartError, EngineUnavailable
from sglang_subgw.kv_events.relay import KvEventRelay
from sglang_subgw.kv_events.subscription import KvEventBatch, KvEvents, KvEventsLost, KvSubscription
from sglang_subgw.simulated.publications.facts import kv_event_facts
from sglang_subgw.simulated.publications.kv_publisher import KvPublisher

CLEARED: dict[str, Any] = {"type": "AllBlocksCleared"}


class Published:
    """Publishers and the relay."""

    def __init__(self, runtime_dir: Path, *, ranks: int = 1, **config: Any) -> None:
        self.facts = kv_event_facts(runtime_dir, ranks, config)
        self.publisher = KvPublisher(self.facts, buffer_steps=config.get("buffer_steps", 10_000))
        self.relay = KvEventRelay(self.facts)

    @asynccontextmanager
    async def reader(
        self, *, ranks: tuple[int, ...] = (0,), since: int | None = None, limit: int = 1000
    ) -> AsyncIterator[Callable[[], Any]]:
        """A subscription in force; calling it awaits the next item."""
        sources = [source for source in self.facts.sources if source.dp_rank in ranks]
        async with KvSubscription(self.facts, sources, since=since, limit=limit) as subscription:
            items = aiter(subscription)

            async def following() -> KvEvents:
                async with asyncio.timeout(10):
                    return await anext(items)

            try:
                yield following
            finally:
                await items.aclose()  # type: ignore[attr-defined]

    async def connected(self) -> None:
        """Until the relay hears every publisher."""
        async with asyncio.timeout(10):
            for rank in range(len(self.facts.sources)):
                async with self.reader(ranks=(rank,)) as following:
                    heard = asyncio.ensure_future(following())
                    while not heard.done():
                        self.publisher.publish([CLEARED], rank)
                        await asyncio.wait([heard], timeout=0.01)


@pytest.fixture
def publish(runtime_dir: Path) -> Iterator[Callable[..., Published]]:
    started: list[Published] = []

    def start(**config: Any) -> Published:
        published = Published(runtime_dir, **config)
        started.append(published)
        published.publisher.start()
        published.relay.start()
        asyncio.run(published.connected())
        return published

    yield start
    for published in started:
        published.relay.close()
        published.relay.close()
        published.publisher.close()


def test_batches_arrive_decoded_and_in_order(publish: Callable[..., Published]) -> None:
    published = publish(topic="kv")

    async def read() -> list[KvEvents]:
        async with published.reader() as following:
            published.publisher.stored(range(40))
            published.publisher.publish([{"type": "BlockRemoved", "block_hashes": [-(2**63), 7], "medium": "GPU"}])
            published.publisher.cleared()
            return [await following() for _ in range(3)]

    stored, removed, cleared = asyncio.run(read())
    assert isinstance(stored, KvEventBatch)
    [event] = stored.events
    assert event["token_ids"] == list(range(32))
    assert len(event["block_hashes"]) == 2
    assert {name: event[name] for name in ("type", "block_size", "lora_id", "medium", "session_id", "lora_name")} == {
        "type": "BlockStored",
        "block_size": 16,
        "lora_id": None,
        "medium": "GPU",
        "session_id": None,
        "lora_name": None,
    }
    assert isinstance(removed, KvEventBatch)
    assert removed.events == [{"type": "BlockRemoved", "block_hashes": [-(2**63), 7], "medium": "GPU"}]
    assert isinstance(cleared, KvEventBatch)
    assert cleared.events == [CLEARED]
    assert (removed.number, cleared.number) == (stored.number + 1, stored.number + 2)


def test_each_rank_has_its_own_numbers_and_can_be_read_alone(publish: Callable[..., Published]) -> None:
    published = publish(ranks=3)

    async def read() -> tuple[list[KvEvents], list[KvEvents]]:
        async with published.reader(ranks=(0, 1, 2)) as every, published.reader(ranks=(1,)) as one:
            for rank in (2, 1, 0, 1):
                published.publisher.publish([CLEARED], rank)
            return [await every() for _ in range(4)], [await one() for _ in range(2)]

    every, one = asyncio.run(read())
    assert sorted(item.dp_rank for item in every) == [0, 1, 1, 2]
    assert [item for item in every if item.dp_rank == 1] == one


def test_what_the_publisher_dropped_is_marked(publish: Callable[..., Published]) -> None:
    published = publish()

    async def read() -> list[KvEvents]:
        async with published.reader() as following:
            published.publisher.publish([CLEARED])
            published.publisher.publish([CLEARED], skip=3)
            return [await following() for _ in range(3)]

    before, lost, after = asyncio.run(read())
    assert isinstance(before, KvEventBatch)
    assert isinstance(after, KvEventBatch)
    assert lost == KvEventsLost(0, before.number + 1, 3)
    assert after.number == before.number + 4


def test_missing_batches_are_asked_for_again(publish: Callable[..., Published]) -> None:
    published = publish(replay_endpoint="tcp://*:1")

    async def read() -> list[KvEvents]:
        async with published.reader() as following:
            published.publisher.publish([CLEARED])
            published.publisher.publish([CLEARED], skip=3)
            return [await following() for _ in range(5)]

    items = asyncio.run(read())
    assert all(isinstance(item, KvEventBatch) and item.events == [CLEARED] for item in items)
    numbers = [item.number for item in items if isinstance(item, KvEventBatch)]
    assert numbers == list(range(numbers[0], numbers[0] + 5))


def test_those_that_are_no_longer_kept_stay_missing(publish: Callable[..., Published]) -> None:
    published = publish(replay_endpoint="tcp://*:1", buffer_steps=2)

    async def read() -> list[KvEvents]:
        async with published.reader() as following:
            published.publisher.publish([CLEARED])
            published.publisher.publish([CLEARED], skip=3)
            return [await following() for _ in range(4)]

    first, lost, kept, last = asyncio.run(read())
    assert isinstance(first, KvEventBatch)
    assert lost == KvEventsLost(0, first.number + 1, 2)
    assert isinstance(kept, KvEventBatch)
    assert isinstance(last, KvEventBatch)
    assert (kept.number, last.number) == (first.number + 3, first.number + 4)


@pytest.mark.parametrize("count", [7, 12_000], ids=["few", "more than a queue takes"])
def test_a_reader_can_begin_with_past_batches(publish: Callable[..., Published], count: int) -> None:
    published = publish(replay_endpoint="tcp://*:1", buffer_steps=100_000)
    for _ in range(count):
        published.publisher.publish([])

    async def read() -> None:
        async with published.reader(since=0) as following:
            for number in range(count):
                item = await following()
                assert isinstance(item, KvEventBatch), item
                assert item.number == number
            published.publisher.publish([CLEARED])
            while not (item := await following()).events:
                count_up = item.number
            assert item.number == count_up + 1

    asyncio.run(read())


@pytest.mark.parametrize("replay", [None, "tcp://*:1"], ids=["no replay", "replay"])
def test_a_reader_that_is_too_slow_knows_what_it_lost(publish: Callable[..., Published], replay: str | None) -> None:
    published = publish(replay_endpoint=replay, buffer_steps=50)
    count = 8_000

    async def read() -> tuple[int, list[KvEvents]]:
        async with published.reader(limit=10) as following, published.reader(limit=2 * count) as fast:
            published.publisher.publish([CLEARED])
            first = await fast()
            for number in range(count):
                published.publisher.publish([{"type": "AllBlocksCleared", "number": number}])
            # Everything is out when the other reader has it; nothing follows that would show this one a gap.
            last = first
            while last.number < first.number + count:
                last = await fast()
            items = [await following()]
            while _end(items[-1]) <= last.number:
                items.append(await following())
            return first.number, items

    first, items = asyncio.run(read())
    numbers: list[int] = []
    for item in items:
        numbers += [item.number] if isinstance(item, KvEventBatch) else range(item.first, item.first + item.count)
    assert numbers == list(range(first, first + count + 1))
    assert any(isinstance(item, KvEventsLost) for item in items)


def _end(item: KvEvents) -> int:
    return item.number + 1 if isinstance(item, KvEventBatch) else item.first + item.count


def test_a_rank_that_begins_anew_is_told(publish: Callable[..., Published]) -> None:
    published = publish()

    async def read() -> list[KvEvents]:
        async with published.reader() as following:
            published.publisher.publish([CLEARED], skip=10_000)
            assert isinstance(await following(), KvEventsLost)
            assert isinstance(await following(), KvEventBatch)
            published.publisher.close()
            published.publisher = KvPublisher(published.facts)
            published.publisher.start()
            heard = asyncio.ensure_future(following())
            while not heard.done():
                published.publisher.publish([CLEARED])
                await asyncio.wait([heard], timeout=0.01)
            return [heard.result(), await following()]

    restarted, batch = asyncio.run(read())
    assert isinstance(restarted, KvEventsLost)
    assert isinstance(batch, KvEventBatch)
    assert (restarted.restarted, restarted.first, restarted.count) == (True, 0, batch.number)


def test_what_is_no_batch_is_dropped_with_a_word(
    publish: Callable[..., Published], caplog: pytest.LogCaptureFixture
) -> None:
    published = publish()
    rank = published.publisher._ranks[0]

    async def read() -> list[KvEvents]:
        async with published.reader() as following:
            rank._publisher.send_multipart([b"", b"no number", b"batch"])
            rank._publisher.send_multipart([b"", rank._next.to_bytes(8), b"\xc1"])
            rank._next += 1
            published.publisher.publish([CLEARED])
            return [await following() for _ in range(2)]

    lost, batch = asyncio.run(read())
    assert isinstance(batch, KvEventBatch)
    assert lost == KvEventsLost(0, batch.number - 1, 1)
    assert "no batch of KV events" in caplog.text
    assert f"Batch {batch.number - 1} of rank 0's KV events can't be read" in caplog.text


def test_the_end_of_the_engine_ends_the_reading(publish: Callable[..., Published]) -> None:
    published = publish()

    async def read() -> None:
        async with KvSubscription(published.facts, published.facts.sources, since=None, limit=10) as subscription:
            asyncio.get_running_loop().call_later(0.01, subscription.fail, "the engine is gone")
            async for _ in subscription:
                pass

    with pytest.raises(EngineUnavailable, match="the engine is gone"):
        asyncio.run(read())


def test_publishers_are_subscribed_to_once(publish: Callable[..., Published]) -> None:
    published = publish(ranks=2)

    async def read() -> None:
        async with published.reader() as one, published.reader() as other:
            published.publisher.publish([CLEARED])
            assert await one() == await other()

    asyncio.run(read())
    assert published.publisher.subscriptions == 2


def test_a_socket_that_can_t_be_had_is_named(runtime_dir: Path) -> None:
    facts = KvEventFacts(socket=f"ipc://{runtime_dir}/not/there/kv", sources=())
    relay = KvEventRelay(facts)
    with pytest.raises(EngineStartError, match="not/there/kv"):
        relay.start()
    relay.close()


def test_nothing_is_missed_from_the_start_on(runtime_dir: Path) -> None:
    published = Published(runtime_dir)
    published.publisher.start()
    published.relay.start()

    async def read() -> KvEvents:
        async with published.reader() as following:
            published.publisher.publish([CLEARED])
            return await following()

    try:
        first = asyncio.run(read())
    finally:
        published.relay.close()
        published.publisher.close()
    assert isinstance(first, KvEventBatch)
    assert first.number == 0


def test_a_publisher_that_isn_t_there_yet_is_warned_of(
    runtime_dir: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sglang_subgw.kv_events.relay._CONNECT_MS", 20)
    published = Published(runtime_dir)
    published.relay.start()
    published.publisher.start()
    try:
        asyncio.run(published.connected())
    finally:
        published.relay.close()
        published.publisher.close()
    assert "Nobody publishes KV events at ipc://" in caplog.text
