"""`POST /call/METHOD` calls the shard's engine with keyword arguments as JSON; beside it the gateway's own routes."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Mount, Route

from sglang_subgw.errors import RequestError
from sglang_subgw.http.app import create_app


async def call(request: Request) -> JSONResponse:
    """The coroutine form, or in a thread the blocking one; `?within=S` gives up after so long."""
    method, arguments = request.path_params["method"], await request.json()
    function = getattr(request.state.engine, method)
    within = float(request.query_params.get("within", "30"))
    try:
        async with asyncio.timeout(within):
            if method.startswith("async_"):
                result = await function(**arguments)
            else:
                result = await asyncio.to_thread(function, **arguments)
    except TimeoutError:
        return JSONResponse({"given up": within})
    except RequestError as error:
        return JSONResponse({"refused": error.message, "status": error.status})
    plain: Any = dataclasses.asdict(result) if dataclasses.is_dataclass(result) else result  # type: ignore[arg-type]
    return JSONResponse({"result": plain})


async def call_here(request: Request) -> JSONResponse:
    """The blocking form where it must not be called: on the loop that has to answer it."""
    function = getattr(request.state.engine, request.path_params["method"])
    try:
        function(**await request.json())
    except RuntimeError as error:
        return JSONResponse({"refused": str(error)})
    return JSONResponse({"result": "it blocked the loop"})


def app(engine: Any, info: Any, config: Any) -> Starlette:
    """The factory for --app."""
    return Starlette(
        routes=[
            Route("/call/{method}", call, methods=["POST"]),
            Route("/call_here/{method}", call_here, methods=["POST"]),
            Mount("/", create_app(engine, info, config)),
        ]
    )
