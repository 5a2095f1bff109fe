"""Like `numbers`, and with what JSON can't carry: `POST /tensors` makes arrays of the numbers that it gets."""

from __future__ import annotations

import struct
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from .numbers import call, ping


class Array:
    """What a shard without torch or numpy can make: dtype, shape and bytes."""

    dtype = "float32"

    def __init__(self, values: list[float]) -> None:
        self.shape = (len(values),)
        self._values = values

    def tobytes(self) -> bytes:
        return struct.pack(f"<{len(self._values)}f", *self._values)


async def tensors(request: Request) -> JSONResponse:
    """New weights by name, within an update of their own."""
    engine: Any = request.state.engine
    body = await request.json()
    named = [(name, Array(values)) for name, values in body.pop("tensors").items()]
    begun = await engine.async_begin_weight_update()
    updated = await engine.async_update_weights_from_tensor(named, **body)
    ended = await engine.async_end_weight_update()
    return JSONResponse([begun, updated, ended])


app = Starlette(
    routes=[
        Route("/ping", ping),
        Route("/tensors", tensors, methods=["POST"]),
        Route("/{method}", call, methods=["POST"]),
    ]
)
