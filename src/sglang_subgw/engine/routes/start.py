"""The admin listener of a configuration, if it has engine routes."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, runtime_checkable

from ...config import GatewayConfig
from ...engine_routes import parse_routes
from ...errors import ConfigError
from ..engine_loop import EngineLoop
from .address import AdminSocket

if TYPE_CHECKING:
    from .listener import AdminListener

SOCKET_NAME: Final = "admin"


@runtime_checkable
class _OwnEngine(Protocol):
    """What an engine of this process has, and one of another has not."""

    engine: Any
    loop: EngineLoop


def start_admin(
    config: GatewayConfig, engine: object, sock: AdminSocket | None, directory: Path
) -> AdminListener | None:
    """Serve the configuration's engine routes, on a socket in `directory` if none is given; None without routes.

    Takes an engine of this process; raises ConfigError for another one, and for a route that names no method.
    """
    if not config.engine_routes:
        return None
    with ExitStack() as stack:
        if sock is not None:
            stack.callback(sock.close)
        if not isinstance(engine, _OwnEngine):
            raise ConfigError(
                "The engine routes need the engine in their own process, and it is in another.",
                hint="Give them to the gateway or --engine-only there.",
            )
        # Not before: it needs msgspec, which is sure to be where SGLang is.
        from .listener import AdminListener
        from .resolve import resolve

        methods = resolve(parse_routes(config.engine_routes), engine.engine)
        if sock is None:
            sock = AdminSocket.at(directory / SOCKET_NAME)
            stack.callback(sock.close)
        listener = AdminListener(methods, engine.loop, sock, max_body_bytes=config.max_body_bytes)
        listener.start()
        stack.pop_all()
        return listener
