"""Modules that a subinterpreter can't have: what they do there, they do on import."""

from __future__ import annotations

import _interpreters
import os
import time

if _interpreters.get_current()[0] != _interpreters.get_main()[0]:
    match os.environ.get("SUBGW_TEST_HOSTILE"):
        case "abort":
            os.abort()
        case "hang":
            time.sleep(60)
        case "raise":
            raise RuntimeError("no interpreters, please")


async def app(scope: object, receive: object, send: object) -> None:
    """Never called."""
