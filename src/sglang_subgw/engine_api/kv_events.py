"""What the engine's KV caches hold, as its schedulers publish it: for routing by prefix."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Final, Self

from ..contract import KvEventSource
from ..errors import EngineUnavailable, RequestRejected
from .base import EngineCalls

if TYPE_CHECKING:
    from ..kv_events.subscription import KvEvents, KvSubscription

_BUFFER: Final = 4096


class KvEventCalls(EngineCalls):
    """Subscribed to once per engine by its own side, and read by any number of shards."""

    def kv_events(
        self, dp_rank: int | None = None, *, since: int | None = None, buffer: int = _BUFFER
    ) -> KvEventStream:
        """`async for`: every KvEventBatch that is published from now on, of all ranks or one, in each rank's order.

        What a reader misses is told by a KvEventsLost in its place: `buffer` batches wait for it, and 1000 more on the
        engine's side. With a `replay_endpoint` in SGLang's kv_events_config missing batches are asked for again, and
        `since` begins with past ones from that number on. On entry to an `async with` the subscription is in force.
        In threads other than the loop's it is a plain iterator. Raises RequestRejected for an engine that publishes
        none, and EngineUnavailable when it ends.
        """
        facts = self.contract.kv_events
        if not facts.sources:
            raise RequestRejected(f"This engine publishes no KV events: {facts.unavailable}.")
        sources = [source for source in facts.sources if dp_rank in (None, source.dp_rank)]
        if not sources or type(dp_rank) is bool:
            ranks = ", ".join(str(source.dp_rank) for source in facts.sources)
            raise RequestRejected(f"There is no dp_rank {dp_rank!r} that publishes KV events, only {ranks}.")
        if type(buffer) is not int or buffer < 1:
            raise RequestRejected(f"buffer must be an integer from 1 up, not {buffer!r}.")
        if since is not None:
            _check_since(since, sources)
        try:
            # Of all that a shard does only this needs libzmq.
            from ..kv_events.subscription import KvSubscription
        except ImportError as exc:
            raise EngineUnavailable(f"KV events need pyzmq, which this shard can't load: {exc}") from exc
        return KvEventStream(self, KvSubscription(facts, sources, since=since, limit=buffer))


class KvEventStream:
    """One reader's KV events."""

    def __init__(self, calls: KvEventCalls, subscription: KvSubscription) -> None:
        self._calls = calls
        self._subscription = subscription
        self._entered = False

    async def __aenter__(self) -> Self:
        self._calls.worker.check_open()
        await self._subscription.__aenter__()
        self._entered = True
        self._calls.worker.endings.add(self._subscription.fail)
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._calls.worker.endings.discard(self._subscription.fail)
        self._entered = False
        await self._subscription.__aexit__(*exc)

    async def __aiter__(self) -> AsyncIterator[KvEvents]:
        if self._entered:
            async for item in self._subscription:
                yield item
        else:
            async with self:
                async for item in self._subscription:
                    yield item

    def __iter__(self) -> Iterator[KvEvents]:
        return self._calls._blocking_iterator(aiter(self), "kv_events")


def _check_since(since: int, sources: list[KvEventSource]) -> None:
    if type(since) is not int or not 0 <= since < 2**63:
        raise RequestRejected(f"since must be a batch's number, from 0 up, not {since!r}.")
    if not all(source.replay_endpoint for source in sources):
        raise RequestRejected("since needs a replay_endpoint in the engine's --kv-events-config.")
