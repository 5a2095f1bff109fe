"""A shard's HTTP application: routes, what every response carries, and what a stop does to new requests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ..config import GatewayConfig
from ..engine_api.info import ShardInfo
from ..errors import EngineUnavailable, RequestRejected
from .core.cors import allow_origin, answer_preflight, is_preflight
from .core.errors import error_body
from .core.exchange import CLOSE, ASGIApp, Exchange, Receive, Scope, Send
from .routes import MODEL, missing, routes
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
        self._routes = routes(services)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _lifespan(receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1000})
            return
        exchange = Exchange(scope, receive, send, [self._shard])
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
        path = exchange.route_path
        if path.startswith(MODEL):
            scope["path_params"] = {**scope.get("path_params", {}), "model": path.removeprefix(MODEL)}
            path = MODEL
        methods, endpoint = self._routes.get(path, ((), None))
        if endpoint is None:
            await exchange.json(error_body(RequestRejected(missing(exchange.path), status=404)), 404)
        elif scope["method"] in methods:
            await endpoint(exchange)
        else:
            refusal = RequestRejected(f"{scope['method']} is not allowed for {exchange.path}.", status=405)
            await exchange.json(error_body(refusal), 405, [(b"allow", ", ".join(methods).encode())])


async def _lifespan(receive: Receive, send: Send) -> None:
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return
