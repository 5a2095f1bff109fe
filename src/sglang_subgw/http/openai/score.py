"""POST /v1/score."""

from __future__ import annotations

import dataclasses
from typing import Any, Final

from ...errors import RequestRejected
from ..core.disconnect import UntilDisconnect
from ..core.exchange import Exchange
from ..core.fields import (
    FieldTable,
    boolean,
    integer,
    list_of,
    number,
    optional,
    overrides,
    string,
    token_id_lists,
    token_ids,
    vectors,
    wrong,
)
from ..services import Services
from .models import resolve_model
from .protocol import DEFAULT_MODEL
from .reading import read_values
from .usage import usage


def _query(value: Any, name: str) -> Any:
    return value if isinstance(value, str) else token_ids(value, name)


def _items(value: Any, name: str) -> Any:
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise wrong(name, "a string, an array of strings or an array of token id arrays", value)
    return list_of(string if value and isinstance(value[0], str) else token_ids)(value, name)


TABLE: Final = FieldTable(
    optional("query", _query),
    optional("items", _items),
    optional("label_token_ids", token_id_lists),
    optional("apply_softmax", boolean, False),
    optional("temperature", number, 1.0),
    optional("return_token_logprobs", boolean, False),
    optional("item_first", boolean, False),
    optional("return_pooled_hidden_states", boolean, False),
    optional("score_extraction_token", string),
    optional("embed_override_token_id", integer),
    optional("query_embed_overrides", vectors),
    optional("item_embed_overrides", overrides),
    optional("model", string, DEFAULT_MODEL),
)


class ScoreHandler:
    """Scores of items after a query."""

    def __init__(self, services: Services) -> None:
        self._engine = services.engine
        self._contract = services.contract
        self._limit = services.config.max_body_bytes

    async def __call__(self, exchange: Exchange) -> None:
        values = await read_values(exchange, TABLE, self._limit)
        model = values.pop("model")
        if resolve_model(model, self._contract) is not None:
            raise RequestRejected("Scores can't be had from a LoRA adapter.", param="model")
        token = values.pop("score_extraction_token")
        if token is not None:
            values["score_extraction_token_id"] = self._token_id(token)
        async with UntilDisconnect(exchange):
            result = await self._engine.async_score(**values)
        answer = {
            **dataclasses.asdict(result),
            "model": model,
            "usage": usage(result.prompt_tokens, 0, 0),
            "object": "scoring",
        }
        order = ("scores", "pooled_hidden_states", "token_logprobs", "model", "usage", "object")
        await exchange.json({name: answer[name] for name in order})

    def _token_id(self, token: str) -> int:
        tokenizer = self._engine.tokenizer
        found = tokenizer.id_of(token)
        unknown = self._contract.model.special_tokens.get("unk_token")
        if found is None or (isinstance(unknown, str) and found == tokenizer.id_of(unknown)):
            raise RequestRejected(
                f"score_extraction_token {token!r} did not resolve to a dedicated token id.",
                param="score_extraction_token",
            )
        return found
