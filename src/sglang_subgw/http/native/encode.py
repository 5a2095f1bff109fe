"""SGLang's native /encode, and /classify, which is the same: embeddings, and whatever else a model's head gives."""

from __future__ import annotations

import time

from ...engine_api.embedding import ENGINE_SIDE
from ...worker.requests.request import EmbeddingRequest
from ..core.body import read_object
from ..core.disconnect import UntilDisconnect
from ..core.exchange import Exchange
from ..services import Services
from .encode_fields import FIELDS, ONLY_THERE


class EncodeHandler:
    """POST and PUT /encode and /classify."""

    def __init__(self, services: Services) -> None:
        self._engine = services.engine
        self._limit = services.config.max_body_bytes

    async def __call__(self, exchange: Exchange) -> None:
        arrived = time.perf_counter()
        values = FIELDS.read(await read_object(exchange, self._limit))
        del values["routing_key"]
        async with UntilDisconnect(exchange):
            if any(values[name] is not None for name in ENGINE_SIDE):
                answer = await self._engine.embed_there(values)
            else:
                fields = {name: value for name, value in values.items() if name not in ONLY_THERE}
                answer = await self._engine.embed(EmbeddingRequest(**fields, received_time=arrived))
        await exchange.json(answer)
