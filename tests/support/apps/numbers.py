"""An application that calls its shard's engine by method name: `POST /METHOD` with keyword arguments as JSON."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from sglang_subgw.errors import RequestError


async def call(request: Request) -> JSONResponse:
    """What the method of that name answers, or why it doesn't."""
    method, arguments = request.path_params["method"], await request.json()
    try:
        result = await called(request, method, **arguments)
    except RequestError as error:
        return JSONResponse({"refused": error.message})
    plain: Any = dataclasses.asdict(result) if dataclasses.is_dataclass(result) else result  # type: ignore[arg-type]
    return JSONResponse(plain)


async def called(request: Request, method: str, /, *arguments: Any, **named: Any) -> Any:
    """The coroutine form, or in a thread the blocking one."""
    function = getattr(request.state.engine, method)
    if method.startswith("async_"):
        return await function(*arguments, **named)
    return await asyncio.to_thread(function, *arguments, **named)


async def ping(request: Request) -> JSONResponse:
    """Which shard this is."""
    return JSONResponse({}, headers={"x-sglang-subgw-shard": str(request.state.shard.index)})


app = Starlette(routes=[Route("/ping", ping), Route("/{method}", call, methods=["POST"])])
