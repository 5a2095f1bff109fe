"""A FastAPI application that knows nothing of this package but what its requests' state holds."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, Field


class Ask(BaseModel):
    """What a client sends."""

    text: str
    tokens: int = Field(default=4, gt=0)


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[dict[str, Any]]:
    """Has state of its own beside the gateway's."""
    yield {"greeting": "hello"}


app = FastAPI(lifespan=lifespan)


@app.post("/ask")
async def ask(ask: Ask, request: Request) -> dict[str, Any]:
    """One whole answer."""
    out = await request.state.engine.async_generate(ask.text, {"max_new_tokens": ask.tokens})
    shard = request.state.shard
    return {"text": out["text"], "shard": shard.index, "mode": shard.mode, "greeting": request.state.greeting}


@app.post("/ask/stream")
async def ask_stream(ask: Ask, request: Request) -> StreamingResponse:
    """The cumulative text, a line per step."""
    outs = await request.state.engine.async_generate(ask.text, {"max_new_tokens": ask.tokens}, stream=True)

    async def lines() -> AsyncIterator[str]:
        async for out in outs:
            yield out["text"] + "\n"

    return StreamingResponse(lines(), media_type="text/plain")
