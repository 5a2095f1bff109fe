"""POST /v1/embeddings."""

from __future__ import annotations

import base64
import struct
import time
from typing import Any, Final

from ...errors import EngineRejected, RequestRejected
from ...worker.requests.request import EmbeddingRequest
from ..core.disconnect import UntilDisconnect
from ..core.exchange import Exchange
from ..core.fields import (
    PROMPT_FIELDS,
    FieldTable,
    integer,
    mapping,
    nullable,
    optional,
    overrides,
    required,
    string,
    token_id_lists,
    wrong,
)
from ..services import Services
from .models import resolve_model
from .protocol import DEFAULT_MODEL
from .reading import read_values
from .usage import usage

_PARTS: Final = ("text", "image", "video")


def _input(value: Any, name: str) -> Any:
    if value in ("", []):
        raise RequestRejected("Input cannot be empty", param=name)
    if isinstance(value, str):
        if not value.strip():
            raise RequestRejected("Input cannot be empty or whitespace only", param=name)
        return value
    if not isinstance(value, list):
        raise wrong(name, "a string, an array of strings, token ids or an array of token id arrays", value)
    if isinstance(value[0], str):
        for position, text in enumerate(value):
            if not isinstance(text, str):
                raise RequestRejected("All items in input list must be strings", param=name)
            if not text.strip():
                raise RequestRejected(f"Input at index {position} cannot be empty or whitespace only", param=name)
        return value
    if isinstance(value[0], dict):
        return [_parts(item, f"{name}[{position}]") for position, item in enumerate(value)]
    return token_id_lists(value, name)


def _parts(value: Any, name: str) -> dict[str, str | None]:
    for key in mapping(value, name):
        if key not in _PARTS:
            raise RequestRejected(f"Field '{name}.{key}' is not supported.", param=f"{name}.{key}")
    return {key: nullable(string)(value.get(key), f"{name}.{key}") for key in _PARTS}


def _format(value: Any, name: str) -> str:
    if value not in ("float", "base64"):
        raise RequestRejected(f"encoding_format must be either 'float' or 'base64', got {value!r}", param=name)
    return str(value)


TABLE: Final = FieldTable(
    required("input", _input),
    optional("model", string, DEFAULT_MODEL),
    optional("encoding_format", _format, "float"),
    optional("dimensions", integer),
    # Names the end user to OpenAI; SGLang takes it and has no use for it.
    optional("user", string),
    # SGLang's own
    *PROMPT_FIELDS,
    optional("embed_override_token_id", integer),
    optional("embed_overrides", overrides),
)


class EmbeddingsHandler:
    """Embeddings of strings and of token ids, one or many; images and tensors go to SGLang's own worker."""

    def __init__(self, services: Services) -> None:
        self._engine = services.engine
        self._contract = services.contract
        self._limit = services.config.max_body_bytes

    async def __call__(self, exchange: Exchange) -> None:
        arrived = time.perf_counter()
        values = await read_values(exchange, TABLE, self._limit)
        if (values["embed_overrides"] is None) != (values["embed_override_token_id"] is None):
            raise RequestRejected(
                "embed_overrides and embed_override_token_id go together: give both or none.", param="embed_overrides"
            )
        adapter = resolve_model(values["model"], self._contract)
        values["lora_path"] = adapter if adapter is not None else values["lora_path"]
        async with UntilDisconnect(exchange):
            answers = await self._answers(values, arrived)
        await exchange.json(self._body(answers if isinstance(answers, list) else [answers], values["encoding_format"]))

    async def _answers(self, values: dict[str, Any], arrived: float) -> Any:
        given: Any = values["input"]
        is_text = isinstance(given, str) or isinstance(given[0], str)
        if isinstance(given[0], dict):
            return await self._engine.embed_parts({name: value for name, value in values.items() if value is not None})
        fields = {name: values[name] for name in ("rid", "priority", "lora_path", "dimensions")}
        fields["text" if is_text else "input_ids"] = given
        if values["embed_overrides"] is None:
            return await self._engine.embed(EmbeddingRequest(**fields, received_time=arrived))
        vectors = values["embed_overrides"]
        if isinstance(given, str) or isinstance(given[0], int):
            if len(vectors) != 1:
                raise RequestRejected("embed_overrides must have one list per input.", param="embed_overrides")
            [vectors] = vectors
        fields |= {"embed_overrides": vectors, "embed_override_token_id": values["embed_override_token_id"]}
        return await self._engine.embed_there(fields)

    def _body(self, answers: list[dict[str, Any]], encoding_format: str) -> dict[str, Any]:
        tokens = sum(answer["meta_info"].get("prompt_tokens") or 0 for answer in answers)
        return {
            "data": [
                {"embedding": _encoded(answer.get("embedding"), encoding_format), "index": index, "object": "embedding"}
                for index, answer in enumerate(answers)
            ],
            "model": self._contract.model.model_path,
            "object": "list",
            "usage": usage(tokens, 0, 0),
        }


def _encoded(embedding: Any, encoding_format: str) -> list[float] | str:
    if not isinstance(embedding, list) or not all(isinstance(number, int | float) for number in embedding):
        raise EngineRejected(
            "This model's answer is not one vector per input: ask /encode for it.", status=400, type="BadRequestError"
        )
    if encoding_format == "float":
        return embedding
    return base64.b64encode(struct.pack(f"<{len(embedding)}f", *embedding)).decode()
