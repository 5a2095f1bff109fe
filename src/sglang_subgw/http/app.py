"""A shard's HTTP application: routes, what every response carries, and what a stop does to new requests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from starlette.exceptions import HTTPException
from starlette.routing import Router
from starlette.types import ASGIApp, Receive, Scope, Send

from ..config import GatewayConfig
from ..engine_api.info import ShardInfo
from ..errors import EngineUnavailable, RequestRejected
from .core.cors import allow_origin, answer_preflight, is_preflight
from .core.errors import error_body
from .core.exchange import CLOSE, Exchange
from .routes import missing, routes
from .services import Services

if TYPE_CHECKING:
    from ..engine_api.engine import ShardEngine

_OPEN_WHILE_DRAINING: Final = frozenset({"/health", "/health_generate", "/ready", "/ping", "/abort_request"})
"""Health says by itself that the shard stops; an abort helps it to."""


def create_app(engine: ShardEngine, info: ShardInfo, config: GatewayConfig) -> ASGIApp:
    """The ASGI application of one shard."""
    return _Application(Services(engine, info, config))


class _Application:
    def __init__(self, services: Services) -> None:
        self._engine = services.engine
        self._shard = (b"x-sglang-subgw-shard", str(services.info.index).encode())
        self._router = Router(routes(services), redirect_slashes=False, default=_no_route)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _lifespan(receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1000})
            return
        exchange = Exchange(scope, receive, send, [self._shard])
        scope["sglang_subgw.exchange"] = exchange
        # With "app" set, starlette raises for a wrong method instead of answering in plain text.
        scope["app"] = self
        if is_preflight(exchange):
            await answer_preflight(exchange)
            return
        allow_origin(exchange)
        if self._engine.draining:
            exchange.always(*CLOSE)
            if exchange.path not in _OPEN_WHILE_DRAINING:
                error = EngineUnavailable("The server is stopping and takes no new requests.")
                await exchange.json(error_body(error), error.status)
                return
        try:
            await self._router(scope, receive, send)
        except HTTPException as error:
            status = error.status_code
            refusal = RequestRejected(f"{scope['method']} is not allowed for {exchange.path}.", status=status)
            headers = [(name.lower().encode(), value.encode()) for name, value in (error.headers or {}).items()]
            await exchange.json(error_body(refusal), status, headers)


async def _no_route(scope: Scope, receive: Receive, send: Send) -> None:
    exchange: Exchange = scope["sglang_subgw.exchange"]
    await exchange.json(error_body(RequestRejected(missing(exchange.path), status=404)), 404)


async def _lifespan(receive: Receive, send: Send) -> None:
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return
