"""Reads a request's JSON object: never more than the limit, and every fault of it is the client's."""

from __future__ import annotations

from typing import Any

from ...errors import RequestRejected
from .exchange import ClientGone, Exchange
from .jsonio import loads


async def read_object(exchange: Exchange, limit: int) -> dict[str, Any]:
    """The body as a JSON object; raises RequestRejected for anything else, ClientGone if the client left."""
    encoding = exchange.headers.get("content-encoding", "identity")
    if encoding.lower() not in ("", "identity"):
        raise RequestRejected(
            f"Content-Encoding {encoding!r} is not supported: send the body uncompressed.",
            status=415,
            type="UnsupportedMediaType",
        )
    return parse_object(await read_body(exchange, limit))


async def read_body(exchange: Exchange, limit: int) -> bytes:
    """The body's bytes; refuses a body over the limit before it has read it all."""
    length = exchange.headers.get("content-length", "")
    if length.isdigit() and int(length[:20]) > limit:
        raise _too_large(limit)
    parts = []
    size = 0
    more = True
    while more:
        message = await exchange.receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        part: bytes = message.get("body", b"")
        more = message.get("more_body", False)
        if part:
            size += len(part)
            if size > limit:
                raise _too_large(limit)
            parts.append(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def parse_object(data: bytes) -> dict[str, Any]:
    """The JSON object in `data`; raises RequestRejected for anything else."""
    if not data.strip():
        raise RequestRejected("The request body is empty: a JSON object is needed.")
    try:
        value = loads(data)
    except RecursionError:
        raise RequestRejected("The request body is nested too deeply.") from None
    except UnicodeError:
        raise RequestRejected("The request body is not valid UTF-8 text.") from None
    except ValueError as error:
        raise RequestRejected(f"The request body is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise RequestRejected(f"The request body must be a JSON object, not {json_type(value)}.")
    return value


def json_type(value: Any) -> str:
    """What JSON calls a value of this kind."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, int | float):
        return "a number"
    if isinstance(value, str):
        return "a string"
    return "an array" if isinstance(value, list) else "an object"


def _too_large(limit: int) -> RequestRejected:
    return RequestRejected(
        f"The request body is larger than this server takes ({limit} bytes).",
        status=413,
        type="RequestEntityTooLarge",
    )
