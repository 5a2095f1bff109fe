"""A call of score as SGLang names its parts, and what it must hold to before anything is tokenized."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from ...contract import EngineContract
from ...errors import RequestRejected
from ..requests.limits import check_booleans

type Labels = list[list[int]]
"""For each item the tokens whose probabilities are its scores."""


@dataclass(slots=True)
class ScoreRequest:
    """Engine.score's parameters without those that hold tensors."""

    query: str | list[int] | None = None
    items: str | list[str] | list[list[int]] | None = None
    label_token_ids: list[int] | list[list[int]] | None = None
    apply_softmax: bool = False
    item_first: bool = False
    return_pooled_hidden_states: bool = False
    score_extraction_token_id: int | None = None
    temperature: float = 1.0
    return_token_logprobs: bool = False


def check_score(request: ScoreRequest, contract: EngineContract) -> Labels:
    """The labels of each item, none for a classifier; raises RequestRejected with SGLang's messages."""
    model = contract.model
    check_booleans(request, "apply_softmax", "item_first", "return_pooled_hidden_states", "return_token_logprobs")
    _check_temperature(request)
    if request.return_token_logprobs and not model.is_generation:
        raise RequestRejected(
            "return_token_logprobs is only supported for CausalLM models", param="return_token_logprobs"
        )
    if model.is_generation and request.label_token_ids is None:
        raise RequestRejected("label_token_ids is required for generation (CausalLM) models.", param="label_token_ids")
    if request.items is None:
        raise RequestRejected("items must be provided", param="items")
    _check_types(request)
    if not request.items:
        return []
    labels = _labels(request, model.vocab_size) if model.is_generation else []
    if request.score_extraction_token_id is not None:
        _check_extraction(request, contract)
    if request.return_pooled_hidden_states:
        _check_pooled_states(contract)
    return labels


def _check_temperature(request: ScoreRequest) -> None:
    temperature = request.temperature
    if type(temperature) not in (int, float) or not math.isfinite(temperature) or temperature <= 0:
        raise RequestRejected("temperature must be finite and greater than zero", param="temperature")
    if temperature != 1.0 and not request.apply_softmax:
        raise RequestRejected("temperature requires apply_softmax=True", param="temperature")


def _check_types(request: ScoreRequest) -> None:
    query, items = request.query, request.items
    if not (query is None or isinstance(query, str) or _is_ids(query)):
        raise RequestRejected("query must be a string or a list of token ids.", param="query")
    if isinstance(items, str):
        return
    if not isinstance(items, list) or not (all(isinstance(item, str) for item in items) or all(map(_is_ids, items))):
        raise RequestRejected(
            "items must be a string, a list of strings or a list of lists of token ids.", param="items"
        )


def _labels(request: ScoreRequest, vocab_size: int) -> Labels:
    given: Any = request.label_token_ids
    labels: list[int]
    assert request.items is not None
    count = 1 if isinstance(request.items, str) else len(request.items)
    if not isinstance(given, list) or not given:
        raise RequestRejected("label_token_ids must be a nonempty list", param="label_token_ids")
    if not isinstance(given[0], list):
        given = [given] * count
    elif len(given) != count:
        raise RequestRejected("label_token_ids must have one list per item", param="label_token_ids")
    for labels in given:
        if not isinstance(labels, list) or not labels:
            raise RequestRejected("each item must have a nonempty candidate list", param="label_token_ids")
        if any(type(token) is not int or token < 0 for token in labels):
            raise RequestRejected("label_token_ids must contain nonnegative integers", param="label_token_ids")
        if len(set(labels)) != len(labels):
            raise RequestRejected("label_token_ids must not contain duplicate tokens", param="label_token_ids")
        if (wrong := max(labels)) >= vocab_size:
            raise RequestRejected(
                f"Token ID {wrong} is out of vocabulary (vocab size: {vocab_size})", param="label_token_ids"
            )
    return list(given)


def _check_extraction(request: ScoreRequest, contract: EngineContract) -> None:
    model, features = contract.model, contract.features
    token = request.score_extraction_token_id
    name = "score_extraction_token_id"
    if type(token) is not int or not 0 <= token < model.vocab_size:
        raise RequestRejected(f"{name} must be a token id in [0, {model.vocab_size}).", param=name)
    if not model.is_generation and not model.scores_positions:
        raise RequestRejected(
            f"{name} is only supported for SequenceClassification models that pool the head per position "
            f"(score_and_pool); model architecture(s) {list(model.architectures)} do not (cross-encoder, reward, and "
            "embedding models pool a single vector and ignore the readout positions).",
            param=name,
        )
    if request.item_first:
        raise RequestRejected(f"item_first is not supported with {name}.", param="item_first")
    if not features.disable_radix_cache:
        raise RequestRejected(
            f"{name} requires --disable-radix-cache because pooling positions are relative to the full prompt.",
            param=name,
        )
    if features.chunked_prefill_size != -1:
        raise RequestRejected(
            f"{name} requires --chunked-prefill-size -1 because all pooling positions must be processed in one "
            "prefill.",
            param=name,
        )
    if features.allow_auto_truncate:
        raise RequestRejected(
            f"{name} is not supported with --allow-auto-truncate: pooling positions are computed from the full "
            "prompt, and truncating the sequence would leave them pointing past the truncated length.",
            param=name,
        )


def _check_pooled_states(contract: EngineContract) -> None:
    model = contract.model
    if model.is_generation:
        raise RequestRejected(
            "return_pooled_hidden_states is not supported for CausalLM models. It requires a model with a "
            "task-specific head (e.g. SequenceClassification or RewardModel).",
            param="return_pooled_hidden_states",
        )
    if model.is_cross_encoder:
        raise RequestRejected(
            f"return_pooled_hidden_states is not supported for {model.architectures[0]}. This model uses "
            "CrossEncodingPooler which does not expose pre-head hidden states.",
            param="return_pooled_hidden_states",
        )


def _is_ids(value: Any) -> bool:
    return isinstance(value, list) and all(type(token) is int for token in value)
