"""An error as the JSON body of a response."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...errors import RequestError

type ErrorBody = Callable[[RequestError], dict[str, Any]]
"""The form that a group of routes gives its errors."""


def error_body(error: RequestError) -> dict[str, Any]:
    """An error of a route without a form of its own: SGLang's general one."""
    return {
        "object": "error",
        "message": str(error),
        "type": str(error.status),
        "param": error.param,
        "code": error.status,
    }
