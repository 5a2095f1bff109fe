"""An application that follows the engine's KV cache events in its shard, beside the gateway's own routes."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Mount, Route

from sglang_subgw.config import GatewayConfig
from sglang_subgw.engine_api.engine import ShardEngine
from sglang_subgw.engine_api.info import ShardInfo
from sglang_subgw.engine_api.kv_events import KvEventStream
from sglang_subgw.errors import EngineUnavailable, RequestRejected
from sglang_subgw.http.app import create_app
from sglang_subgw.kv_events.subscription import KvEventBatch, KvEvents


class Follower:
    """What one shard has read so far."""

    def __init__(self, engine: ShardEngine, info: ShardInfo) -> None:
        self._engine = engine
        self._info = info
        self._read: list[dict[str, Any]] = []
        self._news = asyncio.Condition()
        self._task: asyncio.Task[None] | None = None

    async def follow(self, request: Request) -> JSONResponse:
        """Begin; answered when nothing is missed any more."""
        try:
            stream = self._engine.kv_events()
        except RequestRejected as exc:
            return JSONResponse({"message": str(exc)}, exc.status)
        begun = asyncio.Event()
        self._task = asyncio.create_task(self._follow(stream, begun))
        await begun.wait()
        return JSONResponse({"identity": self._info.identity, "model": self._engine.info.model})

    async def events(self, request: Request) -> JSONResponse:
        """All there is, once there are `count` batches."""
        async with self._news:
            await self._news.wait_for(lambda: len(self._read) >= int(request.query_params["count"]))
        return JSONResponse(self._read)

    async def blocking(self, request: Request) -> JSONResponse:
        """One batch, read by a thread."""

        def first() -> KvEvents:
            return next(iter(self._engine.kv_events(since=0)))

        return JSONResponse(_plain(await asyncio.to_thread(first)))

    async def _follow(self, stream: KvEventStream, begun: asyncio.Event) -> None:
        # Until the shard stops.
        with suppress(EngineUnavailable):
            async with stream as events:
                begun.set()
                async for batch in events:
                    async with self._news:
                        self._read.append(_plain(batch))
                        self._news.notify_all()


def _plain(batch: KvEvents) -> dict[str, Any]:
    assert isinstance(batch, KvEventBatch), batch
    return {"dp_rank": batch.dp_rank, "number": batch.number, "events": batch.events}


def factory(engine: ShardEngine, info: ShardInfo, config: GatewayConfig) -> Starlette:
    """The application of one shard."""
    follower = Follower(engine, info)
    return Starlette(
        routes=[
            Route("/follow", follower.follow, methods=["POST"]),
            Route("/events", follower.events),
            Route("/blocking", follower.blocking),
            Mount("/", create_app(engine, info, config)),
        ]
    )
