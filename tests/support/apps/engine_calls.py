"""Like `numbers`, and with what JSON can't carry: `tensors` and `lora_tensors` make arrays of the numbers they get."""

from __future__ import annotations

import dataclasses
import struct
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from .numbers import call, called, ping


class Array:
    """What a shard without torch or numpy can make: dtype, shape and bytes."""

    dtype = "float32"

    def __init__(self, values: list[Any]) -> None:
        matrix = isinstance(values[0], list)
        self.shape = (len(values), len(values[0])) if matrix else (len(values),)
        self._values = [number for row in values for number in row] if matrix else values

    def tobytes(self) -> bytes:
        return struct.pack(f"<{len(self._values)}f", *self._values)


async def tensors(request: Request) -> JSONResponse:
    """New weights by name, within an update of their own."""
    body = await request.json()
    named = [(name, Array(values)) for name, values in body.pop("tensors").items()]
    form = body.pop("form")
    return JSONResponse(
        [
            await called(request, f"{form}begin_weight_update"),
            await called(request, f"{form}update_weights_from_tensor", named, **body),
            await called(request, f"{form}end_weight_update"),
        ]
    )


async def lora_tensors(request: Request) -> JSONResponse:
    """An adapter of such weights."""
    body = await request.json()
    body["tensors"] = {name: Array(rows) for name, rows in body["tensors"].items()}
    result = await called(request, f"{body.pop('form')}load_lora_adapter_from_tensors", **body)
    return JSONResponse(dataclasses.asdict(result))


app = Starlette(
    routes=[
        Route("/ping", ping),
        Route("/tensors", tensors, methods=["POST"]),
        Route("/lora_tensors", lora_tensors, methods=["POST"]),
        Route("/{method}", call, methods=["POST"]),
    ]
)
