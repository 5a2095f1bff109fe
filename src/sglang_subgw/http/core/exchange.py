"""One HTTP exchange: what a handler reads a request from and writes its response to."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from contextlib import nullcontext
from typing import Any, Final, overload
from urllib.parse import parse_qsl

from .body_stream import Body, SendingBody
from .direct import EXTENSION, DirectSend
from .jsonio import dumps

type Scope = MutableMapping[str, Any]
type Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
type Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
type ASGIApp = Callable[[Scope, Receive, Send], Awaitable[None]]
type RawHeaders = list[tuple[bytes, bytes]]

JSON: Final = (b"content-type", b"application/json")
TEXT: Final = (b"content-type", b"text/plain; charset=utf-8")
CLOSE: Final = (b"connection", b"close")


class ClientGone(Exception):
    """Raised by whatever waits for, or reads from, a client that has disconnected."""


class RequestHeaders:
    """A request's headers, looked up by lower-case name; of those that come twice the first counts."""

    __slots__ = ("_raw",)

    def __init__(self, raw: RawHeaders) -> None:
        self._raw = dict(reversed(raw))

    def __contains__(self, name: str) -> bool:
        return name.encode() in self._raw

    @overload
    def get(self, name: str) -> str | None: ...
    @overload
    def get(self, name: str, default: str) -> str: ...
    def get(self, name: str, default: str | None = None) -> str | None:
        """The header's value, or `default` without one."""
        value = self._raw.get(name.encode())
        return default if value is None else value.decode("latin-1")


class Exchange:
    """A request's scope and channel; writes raw ASGI messages, so that a stream pays for no wrapper."""

    __slots__ = ("_always", "_send", "direct", "ended", "headers", "receive", "scope", "started")

    def __init__(self, scope: Scope, receive: Receive, send: Send, always: RawHeaders) -> None:
        self.scope = scope
        self.receive = receive
        self.headers = RequestHeaders(scope["headers"])
        self.started = False
        self.ended = False
        self._send = send
        direct: DirectSend | None = scope.get("extensions", {}).get(EXTENSION)
        self.direct = direct if direct is not None and direct.send == send else None
        """The server's extension, unless something between it and us has wrapped `send`."""
        self._always = always

    @property
    def path(self) -> str:
        """The path as it was asked for."""
        path: str = self.scope["path"]
        return path

    @property
    def route_path(self) -> str:
        """The path below the place where another application has mounted this one."""
        path, root = self.path, self.scope.get("root_path", "")
        return path.removeprefix(root) if f"{path}/".startswith(f"{root}/") else path

    @property
    def query(self) -> dict[str, str]:
        """The query string's parameters; of those that come twice the last counts."""
        return dict(parse_qsl(self.scope["query_string"].decode("latin-1"), keep_blank_values=True))

    def always(self, name: bytes, value: bytes) -> None:
        """Add a header to the response, whoever writes it."""
        self._always.append((name, value))

    async def start(self, status: int, headers: Iterable[tuple[bytes, bytes]] = ()) -> None:
        """Send the status line and the headers."""
        self.started = True
        await self._send({"type": "http.response.start", "status": status, "headers": [*headers, *self._always]})

    def body(self) -> Body:
        """The body of a response that was started, for a relay to write to."""
        return SendingBody(self.write) if self.direct is None else self.direct.body()

    async def write(self, data: bytes) -> None:
        """Send a part of the body; waits while the client is slow."""
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def end(self, data: bytes = b"") -> None:
        """Send the last part of the body."""
        self.ended = True
        await self._send({"type": "http.response.body", "body": data, "more_body": False})

    async def respond(self, status: int, data: bytes = b"", headers: Iterable[tuple[bytes, bytes]] = ()) -> None:
        """Send a whole response."""
        with nullcontext() if self.direct is None else self.direct.corked():
            await self.start(status, [(b"content-length", str(len(data)).encode()), *headers])
            await self.end(data)

    async def json(self, value: Any, status: int = 200, headers: Iterable[tuple[bytes, bytes]] = ()) -> None:
        """Send a value as a whole JSON response."""
        await self.respond(status, dumps(value), [JSON, *headers])

    async def text(self, value: str, status: int = 200) -> None:
        """Send a whole plain text response."""
        await self.respond(status, value.encode(), [TEXT])
