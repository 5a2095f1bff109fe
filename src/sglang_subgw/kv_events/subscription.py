"""One reader's KV cache events: in order, decoded, and with a marker for whatever is missing."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Final, Self

import zmq

from ..contract import REQUIRED, KvEventFacts, KvEventSource
from ..errors import EngineUnavailable, WireError
from ..system.seldom import Seldom
from ..wire.async_socket import AsyncSocket
from ..wire.incoming.unpack import unpack
from .frames import rank_frame
from .order import Order, Place
from .replay import replay

log = logging.getLogger("sglang_subgw.shard")

_ANSWER_SECONDS: Final = 10.0
_REPLAY_PAUSE_SECONDS: Final = 1.0
"""Between two: the scheduler's own interpreter serves them, and a reader that is too slow may not keep it busy."""


@dataclass(frozen=True, slots=True)
class KvEventBatch:
    """What one rank's KV cache did in one step."""

    dp_rank: int
    number: int
    """Counted up by one from batch to batch of a rank."""
    timestamp: float
    """time.time() in the scheduler."""
    events: list[dict[str, Any]]
    """Each with its `type` (BlockStored, BlockRemoved, AllBlocksCleared) and the fields that SGLang gives it."""


@dataclass(frozen=True, slots=True)
class KvEventsLost:
    """Batches of one rank that did not arrive: the reader was too slow, or the scheduler was."""

    dp_rank: int
    first: int
    """The number of the first one."""
    count: int
    restarted: bool = False
    """The rank began to count anew, so that its cache is another one; `first` is 0."""


type KvEvents = KvEventBatch | KvEventsLost


class KvSubscription:
    """A context in which everything that is published is read, or known to be missing."""

    def __init__(self, facts: KvEventFacts, sources: Sequence[KvEventSource], *, since: int | None, limit: int) -> None:
        self._facts = facts
        self._ranks = {rank_frame(source.dp_rank): _SubscribedRank(source) for source in sources}
        self._since = since
        self._limit = limit
        self._seldom = Seldom(log)
        self._socket: AsyncSocket | None = None

    async def __aenter__(self) -> Self:
        self._socket = AsyncSocket(zmq.SUB, self._facts.socket, limit=self._limit)
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                await self._subscribe(self._socket)
        except TimeoutError:
            self._socket.close()
            raise EngineUnavailable(
                f"The engine's side did not answer a subscription to KV events within {_ANSWER_SECONDS:g} s."
            ) from None
        except BaseException:
            self._socket.close()
            raise
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._socket is not None:
            self._socket.close()

    def fail(self, reason: str) -> None:
        """End the reading with EngineUnavailable."""
        if self._socket is not None:
            self._socket.fail(reason)

    async def __aiter__(self) -> AsyncIterator[KvEvents]:
        assert self._socket is not None
        if self._since is not None:
            for rank in self._ranks.values():
                async for item in self._history(rank, self._since):
                    yield item
        while True:
            frame, number, batch = await self._socket.receive()
            if number:
                async for item in self._in_order(self._ranks[frame], int.from_bytes(number), batch):
                    yield item

    async def _subscribe(self, socket: AsyncSocket) -> None:
        """Until each rank's answer has come: from then on nothing is missed unnoticed."""
        for frame in self._ranks:
            socket.subscribe(frame)
        waiting = set(self._ranks)
        while waiting:
            frame, number, batch = await socket.receive()
            # Batches that come before the last answer were published before this was in force.
            if number:
                self._ranks[frame].order.read(int.from_bytes(number) + bool(batch))
            if not batch:
                waiting.discard(frame)

    async def _in_order(self, rank: _SubscribedRank, number: int, batch: bytes) -> AsyncIterator[KvEvents]:
        """A batch, or a notice that has none, after all that is missing before it."""
        order = rank.order
        place = order.place(number)
        if place is Place.KNOWN:
            return
        if place is Place.RESTARTED:
            yield KvEventsLost(rank.source.dp_rank, 0, number, restarted=True)
        elif place is Place.LATER:
            assert order.expected is not None
            async for item in self._past(rank, order.expected, number):
                yield item
        order.read(number + bool(batch))
        if batch:
            yield self._decoded(rank, number, batch)

    async def _history(self, rank: _SubscribedRank, since: int) -> AsyncIterator[KvEvents]:
        published = rank.order.expected
        rank.order.begin(since)
        async for item in self._past(rank, since, None):
            rank.order.read_past(item.number + 1 if isinstance(item, KvEventBatch) else item.first + item.count)
            yield item
        if published is not None:
            async for item in self._in_order(rank, published, b""):
                yield item

    async def _past(self, rank: _SubscribedRank, first: int, end: int | None) -> AsyncIterator[KvEvents]:
        """What there still is of a rank's batches from `first` to before `end`, and markers in place of the rest."""
        dp_rank, at = rank.source.dp_rank, first
        if rank.source.replay_endpoint:
            await rank.pause()
            async with aclosing(replay(rank.source.replay_endpoint, first, end)) as past:
                async for number, batch in past:
                    if number > at:
                        yield KvEventsLost(dp_rank, at, number - at)
                    at = number + 1
                    yield self._decoded(rank, number, batch)
            rank.pause_until = time.monotonic() + _REPLAY_PAUSE_SECONDS
        if end is not None and at < end:
            yield KvEventsLost(dp_rank, at, end - at)

    def _decoded(self, rank: _SubscribedRank, number: int, batch: bytes) -> KvEvents:
        dp_rank = rank.source.dp_rank
        try:
            timestamp, events, *_ = unpack(batch)
            return KvEventBatch(dp_rank, number, timestamp, [self._event(event) for event in events])
        except (WireError, ValueError, TypeError, KeyError, AttributeError) as exc:
            self._seldom.error("Batch %d of rank %d's KV events can't be read: %s", number, dp_rank, exc)
            return KvEventsLost(dp_rank, number, 1)

    def _event(self, event: dict[str, Any] | list[Any]) -> dict[str, Any]:
        """With SGLang's defaults for what it left out; in older releases an event is an array."""
        if isinstance(event, list):
            kind, *values = event
            given = dict(zip((name for name, _ in self._facts.events[kind]), values, strict=False))
        else:
            kind, given = event["type"], event
        defaults = {name: default for name, default in self._facts.events.get(kind, ()) if default != REQUIRED}
        return {"type": kind, **defaults, **given}


class _SubscribedRank:
    def __init__(self, source: KvEventSource) -> None:
        self.source = source
        self.order = Order()
        self.pause_until = 0.0

    async def pause(self) -> None:
        await asyncio.sleep(max(0.0, self.pause_until - time.monotonic()))
