"""Routes about the server itself: health, model and server information, aborts, the prefix cache."""

from __future__ import annotations

import math
from typing import Final

from ...errors import EngineUnavailable, RequestRejected
from ..core.body import parse_object, read_body
from ..core.exchange import Exchange
from ..core.fields import FieldTable, boolean, optional, refused, string
from ..services import Services

_FLUSHED: Final = (
    "Cache flushed.\nPlease check backend logs for more details. "
    "(When there are running or waiting requests, the operation will not be performed.)\n"
)
_ABORT: Final = FieldTable(
    optional("rid", string, ""),
    optional("abort_all", boolean, False),
    *(
        refused(name, "it is internal to SGLang")
        for name in ("http_worker_ipc", "finished_reason", "abort_message", "weight_versions")
    ),
)


class Admin:
    """The handlers; each method is one."""

    def __init__(self, services: Services) -> None:
        self._engine = services.engine
        self._info = services.info
        self._config = services.config
        self._contract = services.contract

    async def root(self, exchange: Exchange) -> None:
        """What this server is, for a browser or a curl on "/"."""
        await exchange.json(
            {
                "server": "sglang-subgw",
                "model": self._contract.model.served_model_name,
                "sglang": self._contract.sglang_version,
                "shard": self._info.index,
                "shards": len(self._engine.shards()),
                "mode": self._info.mode,
            }
        )

    async def alive(self, exchange: Exchange) -> None:
        """200 while the shard takes requests; asks nobody."""
        await exchange.respond(503 if self._engine.draining else 200)

    async def health(self, exchange: Exchange) -> None:
        """200 when anything arrives from the engine after a request for one token."""
        healthy = not self._engine.draining and await self._engine.health_generate(self._config.health_timeout_seconds)
        await exchange.respond(200 if healthy else 503)

    async def model_info(self, exchange: Exchange) -> None:
        """SGLang's description of the model."""
        model, args = self._contract.model, self._contract.server_args
        await exchange.json(
            {
                **self._engine.get_model_info(),
                "tokenizer_path": model.tokenizer_path,
                "preferred_sampling_params": args.get("preferred_sampling_params"),
                "has_image_understanding": model.is_multimodal,
                "has_audio_understanding": False,
                "model_type": model.model_type or None,
                "architectures": list(model.architectures) or None,
            }
        )

    async def server_info(self, exchange: Exchange) -> None:
        """SGLang's server arguments and scheduler state, and this gateway's shards."""
        try:
            internal_states = await self._engine.async_get_internal_state()
        except EngineUnavailable:
            # The rest is known without the engine, and wanted most when it doesn't answer.
            internal_states = []
        info, shards = self._info, self._engine.shards()
        await exchange.json(
            {
                **self._contract.server_args,
                **self._contract.scheduler_info,
                "internal_states": internal_states,
                "version": self._contract.sglang_version,
                "frontend": "sglang-subgw",
                "sglang_subgw": {
                    "identity": info.identity,
                    "engine_id": info.engine_id,
                    "gateway_id": info.gateway_id,
                    "shard": info.index,
                    "shard_count": len(shards),
                    "generation": info.generation,
                    "mode": info.mode,
                    "pid": info.pid,
                    "model": info.model,
                    "dp_ranks": info.dp_ranks,
                    "shards": shards,
                },
            }
        )

    async def abort_request(self, exchange: Exchange) -> None:
        """Abort one request by its rid, or all."""
        values = _ABORT.read(parse_object(await read_body(exchange, self._config.max_body_bytes)))
        if not values["rid"] and not values["abort_all"]:
            raise RequestRejected("'rid' or 'abort_all' is needed.", param="rid")
        self._engine.abort(values["rid"], values["abort_all"])
        await exchange.respond(200)

    async def flush_cache(self, exchange: Exchange) -> None:
        """Empty the engine's prefix cache; `?timeout=` waits that many seconds for the engine to be idle."""
        given = exchange.query.get("timeout", "0")
        try:
            timeout = float(given)
        except ValueError:
            timeout = math.nan
        if not 0.0 <= timeout < math.inf:
            raise RequestRejected(f"'timeout' must be a number from 0 up, not {given!r}.", param="timeout")
        answer = await self._engine.async_flush_cache(timeout)
        if answer.success:
            await exchange.text(_FLUSHED)
        else:
            await exchange.text(answer.message or "Flush cache failed.\n", 400)
