"""SGLang's native /generate: single prompts and batches, whole answers and streams."""

from __future__ import annotations

import time
from typing import Any

from ...errors import RequestError
from ...worker.requests.request import GenerateRequest
from ..core.body import read_object
from ..core.disconnect import UntilDisconnect
from ..core.exchange import JSON, Exchange
from ..core.jsonio import dumps
from ..core.sse import DONE, start_events
from ..relay import relay
from ..services import Services
from .generate_events import GenerateEvents
from .generate_fields import FIELDS


class GenerateHandler:
    """POST and PUT /generate."""

    def __init__(self, services: Services) -> None:
        self._engine = services.engine
        self._limit = services.config.max_body_bytes
        self._incremental = services.contract.features.incremental_streaming_output

    async def __call__(self, exchange: Exchange) -> None:
        arrived = time.perf_counter()
        request = build(await read_object(exchange, self._limit))
        request.received_time = arrived
        if request.stream:
            await self._stream(exchange, request)
        else:
            await self._whole(exchange, request)

    async def _whole(self, exchange: Exchange, request: GenerateRequest) -> None:
        async with UntilDisconnect(exchange), await self._engine.submit(request) as call:
            await call.wait()
            outputs = [sample.output() for sample in call.samples]
        await exchange.respond(200, dumps(outputs[0] if call.is_single else outputs), [JSON])

    async def _stream(self, exchange: Exchange, request: GenerateRequest) -> None:
        async with UntilDisconnect(exchange), await self._engine.submit(request) as call:
            await call.first()
            await start_events(exchange)
            events = GenerateEvents(single=call.is_single, incremental=self._incremental)
            await relay(call, exchange.body(), events.news)
        await exchange.end(DONE)


def build(body: dict[str, Any]) -> GenerateRequest:
    """The request that a body asks for; raises RequestRejected for a field it can't take."""
    values = FIELDS.read(body)
    values.pop("no_logs")
    return GenerateRequest(**values)


def error_body(error: RequestError) -> dict[str, Any]:
    """An error as /generate answers it."""
    return {"error": {"message": str(error)}}


def stream_error_body(error: RequestError) -> dict[str, Any]:
    """An error as a stream of /generate ends with it."""
    kind = "invalid_request_error" if error.status < 500 else error.type
    return {
        "error": {"message": str(error), "type": kind, "code": error.status, "retryable": error.status in (429, 503)}
    }
