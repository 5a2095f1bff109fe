"""Applications and factories without a framework, right ones and wrong ones."""

from __future__ import annotations

import json
from typing import Any

from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Mount, Route

from sglang_subgw.http.app import create_app

not_an_app = 7


async def app(scope: Any, receive: Any, send: Any) -> None:
    """Answers what it is, from the scope's state."""
    if scope["type"] == "lifespan":
        raise NotImplementedError("no lifespan here")
    engine, shard = scope["state"]["engine"], scope["state"]["shard"]
    body = {"kind": "asgi", "shard": shard.index, "model": engine.contract.model.served_model_name}
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/json")]})
    await send({"type": "http.response.body", "body": json.dumps(body).encode()})


class Counting:
    """A class is a factory: its objects are applications."""

    def __init__(self, engine: Any) -> None:
        self.calls = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            self.calls += 1
            await JSONResponse({"kind": "class", "calls": self.calls})(scope, receive, send)


async def factory(engine: Any) -> Starlette:
    """An asynchronous factory."""
    return Starlette(routes=[Route("/", lambda request: JSONResponse({"kind": "async factory"}))])


def factory_of_two(engine: Any, info: Any) -> Starlette:
    """A factory that wants to know its shard."""
    return Starlette(routes=[Route("/", lambda request: JSONResponse({"kind": "two", "shard": info.index}))])


def beside(engine: Any, info: Any, config: Any) -> Starlette:
    """The gateway's own routes beside the application's."""

    async def mine(request: Any) -> JSONResponse:
        return JSONResponse({"kind": "beside"})

    return Starlette(routes=[Route("/", mine), Mount("/", create_app(engine, info, config))])


def swapped(engine: Any, info: Any, config: Any) -> Any:
    """The gateway's routes behind a middleware that changes every part of a body."""
    inner = create_app(engine, info, config)

    async def outer(scope: Any, receive: Any, send: Any) -> None:
        async def changed(message: Any) -> None:
            await send({**message, "body": message["body"].swapcase()} if "body" in message else message)

        await inner(scope, receive, changed)

    return outer


def no_argument() -> Starlette:
    """Neither an application nor a factory of one."""
    return Starlette()


def makes_nothing(engine: Any) -> None:
    """A factory that forgot to return."""


class Broken:
    """Its start-up fails."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await receive()
            await send({"type": "lifespan.startup.failed", "message": "the database is away"})


broken = Broken()
