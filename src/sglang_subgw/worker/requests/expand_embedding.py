"""A client's request for embeddings as single prompts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from ...errors import RequestRejected
from ...wire.outgoing.values import is_str
from .plan import Columns, RequestPlan, id_shape, is_object, text_shape, wrong
from .request import EmbeddingRequest

type Text = str | list[str]
"""A text, or the two of a pair."""

_TEXTS: Final = "a string or a list of strings"
_PAIRS: Final = "a list of pairs of strings for a cross encoder"


@dataclass(slots=True)
class EmbeddingPrompt:
    """One prompt of a request, with the fields that can differ from prompt to prompt."""

    text: Text | None
    input_ids: list[int] | None
    sampling_params: dict[str, Any]
    rid: str | None
    lora_path: str | None
    multi_item_delimiter_indices: list[int] | None
    token_indices_to_pool: list[int] | None


def expand_embedding(request: EmbeddingRequest) -> RequestPlan[EmbeddingPrompt]:
    """Take a request apart, with SGLang's rules and messages; raises RequestRejected."""
    if request.text is None and request.input_ids is None:
        raise RequestRejected("At least one of text, input_ids, image, video, or audio should be provided")
    if request.text is not None and request.input_ids is not None:
        raise RequestRejected("text and input_ids cannot be provided at the same time", param="input_ids")
    is_batch, count = id_shape(request.input_ids) if request.text is None else text_shape(request.text)
    columns = Columns(request, count, is_batch=is_batch)
    rids, batch_name = columns.names()
    values = {
        "text": _texts(request, count),
        "input_ids": columns.input_ids(),
        "sampling_params": columns.split("sampling_params", is_object, "an object", {}),
        "rid": rids,
        "lora_path": [name or None for name in columns.split("lora_path", is_str, "a string")],
        "multi_item_delimiter_indices": columns.int_lists("multi_item_delimiter_indices"),
        "token_indices_to_pool": columns.int_lists("token_indices_to_pool"),
    }
    prompts = [EmbeddingPrompt(**dict(zip(values, row, strict=True))) for row in zip(*values.values(), strict=True)]
    return RequestPlan(prompts=prompts, samples=1, is_single=columns.is_single, batch_name=batch_name)


def _texts(request: EmbeddingRequest, count: int) -> list[Text | None]:
    text: Any = request.text
    if text is None:
        return [None] * count
    if not isinstance(text, list):
        if not is_str(text):
            raise wrong("text", _TEXTS, text)
        return [text]
    check, kind = (_is_pair, _PAIRS) if request.is_cross_encoder_request else (is_str, _TEXTS)
    for item in text:
        if not check(item):
            raise wrong("text", kind, item)
    return text


def _is_pair(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(map(is_str, value))
