"""What both OpenAI endpoints share: check, submit, and answer whole or as a stream."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Protocol

from ...errors import RequestRejected
from ...worker.answers.sample import Sample
from ...worker.requests.request import GenerateRequest
from ..core.disconnect import UntilDisconnect
from ..core.exchange import Exchange, RequestHeaders
from ..core.fields import FieldTable
from ..core.sse import DONE, start_events
from ..relay import relay
from ..services import Services
from .logprobs import TokenBytes
from .models import resolve_model
from .reading import read_values
from .sampling import SamplingFields


class Events(Protocol):
    """Renders one call's stream; each method gives any number of whole events."""

    def news(self, sample: Sample) -> bytes:
        """What a sample has new; raises its error."""

    def last(self, samples: Sequence[Sample]) -> bytes:
        """What follows when all samples have ended."""


class OpenAIHandler(ABC):
    """A POST endpoint of OpenAI's API."""

    table: FieldTable

    def __init__(self, services: Services) -> None:
        self.engine = services.engine
        self.contract = services.contract
        self.token_bytes = TokenBytes(self.engine.tokenizer)
        self.sampling = SamplingFields(self.contract)
        self._limit = services.config.max_body_bytes

    @abstractmethod
    async def request(self, values: dict[str, Any], headers: RequestHeaders) -> GenerateRequest:
        """The engine's request for the checked fields."""

    @abstractmethod
    def whole(self, values: dict[str, Any], samples: Sequence[Sample]) -> dict[str, Any]:
        """The answer in one object."""

    @abstractmethod
    def events(self, values: dict[str, Any], headers: RequestHeaders) -> Events:
        """The answer as events."""

    async def __call__(self, exchange: Exchange) -> None:
        arrived = time.perf_counter()
        values = await read_values(exchange, self.table, self._limit)
        adapter = resolve_model(values["model"], self.contract)
        request = await self.request(values, exchange.headers)
        request.lora_path = adapter if adapter is not None else values["lora_path"]
        request.routing_key = exchange.headers.get("x-smg-routing-key")
        _take_rank(request, exchange.headers)
        request.received_time = arrived
        if request.stream:
            await self._stream(exchange, request, self.events(values, exchange.headers))
        else:
            await self._whole(exchange, request, values)

    async def _whole(self, exchange: Exchange, request: GenerateRequest, values: dict[str, Any]) -> None:
        async with UntilDisconnect(exchange), await self.engine.submit(request) as call:
            await call.wait()
            answer = self.whole(values, call.samples)
        await exchange.json(answer)

    async def _stream(self, exchange: Exchange, request: GenerateRequest, events: Events) -> None:
        async with UntilDisconnect(exchange), await self.engine.submit(request) as call:
            await call.first()
            await start_events(exchange)
            await relay(call, exchange.body(), events.news)
            data = events.last(call.samples) + DONE
        await exchange.end(data)


def _take_rank(request: GenerateRequest, headers: RequestHeaders) -> None:
    """The header wins over the body's field, as a router sets it."""
    value = headers.get("x-data-parallel-rank")
    if value is None:
        return
    try:
        request.routed_dp_rank = int(value)
    except ValueError:
        raise RequestRejected(f"Invalid X-Data-Parallel-Rank header: must be an integer, got {value!r}") from None


def wants_usage(values: dict[str, Any], default: bool) -> tuple[bool, bool]:
    """Whether a stream ends with a usage chunk, and whether every chunk has its own."""
    options = values["stream_options"]
    if options is None:
        return default, False
    return options["include_usage"] or default, options["continuous_usage_stats"]
