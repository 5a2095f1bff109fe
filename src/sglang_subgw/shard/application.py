"""What serves in a shard: the gateway's own routes, the user's ASGI application, or the user's coroutine function."""

from __future__ import annotations

import functools
import inspect
from typing import Any

from ..config import GatewayConfig
from ..contract import Slot
from ..engine_api.engine import ShardEngine
from ..engine_api.info import ShardInfo
from ..errors import ConfigError
from ..http.app import create_app
from .coroutine_server import CoroutineServer
from .server import ShardServer
from .user_code import find_app, find_serve
from .uvicorn_seam import check_uvicorn


async def make_server(
    engine: ShardEngine, info: ShardInfo, config: GatewayConfig, slot: Slot
) -> ShardServer | CoroutineServer:
    """The server of the shard; raises ConfigError for a name that leads to nothing that can serve, DependencyError."""
    if config.serve:
        return CoroutineServer(find_serve(config.serve), config.serve, engine, info)
    await check_uvicorn(config)
    app = await _load(config.app, engine, info, config) if config.app else create_app(engine, info, config)
    return ShardServer(app, config, slot)


async def _load(name: str, engine: ShardEngine, info: ShardInfo, config: GatewayConfig) -> Any:
    """The user's ASGI application, made if `name` is a factory; its scope's state has the engine and the shard."""
    app, count = find_app(name)
    if count:
        app = app(*(engine, info, config)[:count])
        if inspect.isawaitable(app):
            app = await app
        if not callable(app):
            raise ConfigError(f"--app {name!r} made an object of type {type(app).__name__}, not an ASGI application.")
    return _with_state(app, engine, info)


def _with_state(app: Any, engine: ShardEngine, info: ShardInfo) -> Any:
    state = {"engine": engine, "shard": info}

    @functools.wraps(app, updated=())
    async def with_state(scope: Any, receive: Any, send: Any) -> None:
        scope.setdefault("state", {}).update(state)
        await app(scope, receive, send)

    return with_state
