"""The admin listener's HTTP: a POST with a JSON object, or a GET where nothing has to be given, calls a method."""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any, Final

from ...errors import RequestRejected
from ...http.core.body import parse_object, read_body
from ...http.core.disconnect import UntilDisconnect
from ...http.core.endpoint import Endpoint
from ...http.core.errors import error_body
from ...http.core.exchange import CLOSE, Exchange, Receive, Scope, Send
from ...http.core.sse import DONE, event, start_events
from .execute import Executor
from .resolve import Method
from .results import plain

log = logging.getLogger("sglang_subgw.engine")

_END: Final = object()


class Application:
    """The ASGI application of the routes, and of a list of them at `/`."""

    def __init__(
        self, methods: Sequence[Method], executor: Executor, *, max_body_bytes: int, is_loopback: bool
    ) -> None:
        self._methods = {method.route.path: method for method in methods}
        self._executor = executor
        self._max_body_bytes = max_body_bytes
        self._is_loopback = is_loopback
        self._endpoint = Endpoint(self._answer, error_body)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._endpoint(Exchange(scope, receive, send, []))

    async def _answer(self, exchange: Exchange) -> None:
        _refuse_web_pages(exchange, self._is_loopback)
        http_method = exchange.scope["method"]
        if exchange.path == "/" and http_method == "GET":
            await exchange.json({"engine_routes": [_described(method) for method in self._methods.values()]})
            return
        method = self._methods.get(exchange.path)
        if method is None:
            raise RequestRejected(
                f"There is no engine route {exchange.path}.", hint=f"There is {', '.join(self._methods)}.", status=404
            )
        if http_method not in method.http_methods:
            exchange.always(b"allow", ", ".join(method.http_methods).encode())
            raise RequestRejected(f"{http_method} is not allowed for {exchange.path}.", status=405)
        arguments = method.parameters.read(await self._read(exchange))
        result = await self._executor.call(method, arguments)
        if not isinstance(result, AsyncGenerator):
            # A client that leaves ends nothing: the answer to a control message would be the next caller's.
            await exchange.json(plain(result))
        elif _asks_for_stream(arguments):
            await _stream(exchange, result)
        else:
            async with aclosing(result), UntilDisconnect(exchange):
                first = await anext(result, None)
            await exchange.json(plain(first))

    async def _read(self, exchange: Exchange) -> dict[str, Any]:
        if exchange.scope["query_string"]:
            raise RequestRejected("Arguments are given as a JSON object by POST, not in the query.")
        data = await read_body(exchange, self._max_body_bytes)
        return parse_object(data) if data.strip() else {}


async def _stream(exchange: Exchange, items: AsyncGenerator[Any]) -> None:
    async with aclosing(items), UntilDisconnect(exchange):
        # The headers wait for the first one: what is wrong with the arguments is told by the status.
        item = await anext(items, _END)
        await start_events(exchange)
        while item is not _END:
            await exchange.write(event(plain(item)))
            item = await anext(items, _END)
    await exchange.end(DONE)


def _asks_for_stream(arguments: dict[str, Any]) -> bool:
    """What a generator's arguments say; one that knows no `stream` streams."""
    values = [arguments.get("stream"), *(getattr(value, "stream", None) for value in arguments.values())]
    return next((bool(value) for value in values if value is not None), True)


def _described(method: Method) -> dict[str, Any]:
    return {
        "path": method.route.path,
        "methods": method.http_methods,
        "calls": f"{method.route.owner}.{method.route.method}",
        "parameters": {name: "required" if needed else "optional" for name, needed in method.parameters.names.items()},
    }


def _refuse_web_pages(exchange: Exchange, is_loopback: bool) -> None:
    """A browser on the machine would let any page call what only the operator may, also by a name of the page's own."""
    if "origin" in exchange.headers or exchange.headers.get("sec-fetch-site", "none") != "none":
        exchange.always(*CLOSE)
        raise RequestRejected("Requests of web pages are refused here.", status=403)
    name = exchange.headers.get("host", "localhost")
    if is_loopback and not _is_local_name(name):
        exchange.always(*CLOSE)
        raise RequestRejected(f"{name!r} is not a name of this machine's own.", status=403)


def _is_local_name(host: str) -> bool:
    name = host.rpartition("]")[0].removeprefix("[") or host.partition(":")[0]
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return name == "localhost"
