"""Cross-origin answers, as SGLang's own server gives them: any origin, method and header, with credentials."""

from __future__ import annotations

from typing import Final

from .exchange import TEXT, Exchange, RawHeaders

_METHODS: Final = b"DELETE, GET, HEAD, OPTIONS, PATCH, POST, PUT"


def allow_origin(exchange: Exchange) -> None:
    """Add the headers that let a page of another origin read the response."""
    origin = exchange.headers.get("origin")
    if origin is None:
        return
    exchange.always(b"access-control-allow-credentials", b"true")
    if "cookie" in exchange.headers:
        exchange.always(b"access-control-allow-origin", origin.encode("latin-1"))
        exchange.always(b"vary", b"Origin")
    else:
        exchange.always(b"access-control-allow-origin", b"*")


def is_preflight(exchange: Exchange) -> bool:
    """Whether a browser asks what it may send."""
    return (
        exchange.scope["method"] == "OPTIONS"
        and "origin" in exchange.headers
        and "access-control-request-method" in exchange.headers
    )


async def answer_preflight(exchange: Exchange) -> None:
    """Allow what the browser asked for."""
    headers: RawHeaders = [
        TEXT,
        (b"vary", b"Origin"),
        (b"access-control-allow-origin", exchange.headers.get("origin", "").encode("latin-1")),
        (b"access-control-allow-credentials", b"true"),
        (b"access-control-allow-methods", _METHODS),
        (b"access-control-max-age", b"600"),
    ]
    wanted = exchange.headers.get("access-control-request-headers")
    if wanted:
        headers.append((b"access-control-allow-headers", wanted.encode("latin-1")))
    await exchange.respond(200, b"OK", headers)
