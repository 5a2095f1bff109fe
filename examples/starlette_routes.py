"""A Starlette application with routes of its own beside OpenAI's and all others of the gateway.

Start it in this directory, and ask it:

    python -m sglang_subgw --app starlette_routes:app --shards 4 --model-path DIR
    curl 127.0.0.1:30000/count -d 'How many tokens is this?'
    curl 127.0.0.1:30000/headline -d 'An engine was sharded today, and nobody noticed.'
    curl 127.0.0.1:30000/v1/models
"""

import contextlib
from collections.abc import AsyncIterator
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, StreamingResponse
from starlette.routing import Mount, Route

from sglang_subgw import GatewayConfig, ShardEngine, ShardInfo
from sglang_subgw.http.app import create_app


def app(engine: ShardEngine, info: ShardInfo, config: GatewayConfig) -> Starlette:
    """Called once in every shard; what it returns serves there."""

    async def count(request: Request) -> JSONResponse:
        """The tokens of a text, by the shard's own tokenizer."""
        text = (await request.body()).decode()
        return JSONResponse({"tokens": len(engine.tokenizer.encode(text)), "shard": info.index})

    async def headline(request: Request) -> StreamingResponse:
        """A headline for a text, as it is written."""
        prompt = f"{(await request.body()).decode()}\n\nHeadline:"
        outs: Any = await engine.async_generate(prompt, {"max_new_tokens": 24, "stop": ["\n"]}, stream=True)
        return StreamingResponse(increments(outs), media_type="text/plain")

    routes = [Route("/count", count, methods=["POST"]), Route("/headline", headline, methods=["POST"])]
    return Starlette(routes=[*routes, Mount("/", create_app(engine, info, config))])


async def increments(outs: Any) -> AsyncIterator[str]:
    """What each output adds to those before it."""
    sent = 0
    async with contextlib.aclosing(outs):
        async for out in outs:
            yield out["text"][sent:]
            sent = len(out["text"])
