"""OpenAI's error form, as SGLang prints it; the official client makes its own error classes of it."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any, Final

from ...errors import EngineRejected, RequestError

_STATUSES: Final = frozenset(status.value for status in HTTPStatus)


def error_body(error: RequestError) -> dict[str, Any]:
    """The error object itself, as a response's body."""
    return {
        "object": "error",
        "message": str(error),
        "type": _type(error),
        "param": error.param,
        "code": error.code if isinstance(error.code, int) else error.status,
    }


def stream_error_body(error: RequestError) -> dict[str, Any]:
    """The error object under "error", as an event of a stream; there SGLang names engine errors by their status."""
    body = error_body(error)
    if isinstance(error, EngineRejected) and error.status in _STATUSES:
        body["type"] = HTTPStatus(error.status).name
    return {"error": body}


def _type(error: RequestError) -> str:
    """SGLang names an engine's error by its status, unless the engine blames the request."""
    if isinstance(error, EngineRejected) and error.type == RequestError.type:
        return "BadRequestError" if error.status == 400 else str(error.status)
    return error.type
