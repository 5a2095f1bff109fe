"""An application that takes its time to start, with its shard's loop turning, and not turning."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.routing import Mount

from sglang_subgw.http.app import create_app

BLOCKED_SECONDS = 2.0
ASLEEP_SECONDS = 1.0


def app(engine: Any, info: Any, config: Any) -> Starlette:
    """The factory for --app; the gateway's routes are its own."""

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        await asyncio.sleep(ASLEEP_SECONDS)
        time.sleep(BLOCKED_SECONDS)  # noqa: ASYNC251
        yield

    return Starlette(routes=[Mount("/", create_app(engine, info, config))], lifespan=lifespan)
