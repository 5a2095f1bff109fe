"""What every kind of request must hold to: SGLang's checks and messages, and what the engine never checks."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from ...contract import EngineContract
from ...errors import RequestRejected
from ...wire.outgoing.token_ids import TokenIds
from ...wire.outgoing.values import is_int

if TYPE_CHECKING:
    from .expand import Prompt
    from .expand_embedding import EmbeddingPrompt
    from .request import EmbeddingRequest, GenerateRequest


def check_common(request: GenerateRequest | EmbeddingRequest, contract: EngineContract) -> None:
    """Priority and adapters; raises RequestRejected."""
    if request.priority is not None and not is_int(request.priority):
        raise RequestRejected(
            "priority must be a signed 64-bit integer between -9223372036854775808 and 9223372036854775807",
            param="priority",
        )
    adapters = request.lora_path if isinstance(request.lora_path, list) else [request.lora_path]
    if not contract.features.enable_lora and (adapter := next(filter(None, adapters), None)):
        raise RequestRejected(
            f"LoRA is not enabled, so there is no adapter {adapter!r}: "
            "start the engine with --enable-lora to use lora_path.",
            param="lora_path",
        )
    if contract.model.answers_decisions:
        raise RequestRejected("This checkpoint answers schema decisions, send them to /v1/systemone")


def check_booleans(request: object, *names: str) -> None:
    """These fields are True or False; raises RequestRejected."""
    for name in names:
        if type(getattr(request, name)) is not bool:
            raise RequestRejected(f"{name} must be a boolean.", param=name)


def fit(ids: list[int], contract: EngineContract) -> tuple[list[int], int]:
    """The ids to send, cut if the engine allows that, and for how many they count.

    Raises RequestRejected for unknown ids, and for too many.
    """
    model = contract.model
    if type(ids) is not TokenIds and ids and not (min(ids) >= 0 and max(ids) < model.vocab_size):
        wrong = next(token for token in ids if not 0 <= token < model.vocab_size)
        raise RequestRejected(
            f"input_ids contains out-of-vocabulary token id {wrong}; valid range is [0, {model.vocab_size}).",
            param="input_ids",
        )
    limit = model.context_length
    count = len(ids) + model.num_reserved_tokens
    if count < limit:
        return ids, count
    if not contract.features.allow_auto_truncate:
        raise RequestRejected(f"The input ({count} tokens) is longer than the model's context length ({limit} tokens).")
    return ids[:limit], min(len(ids), limit)


def check_positions(prompt: Prompt | EmbeddingPrompt, count: int, contract: EngineContract) -> None:
    """The places in a prompt of `count` tokens at which scores are read; raises RequestRejected."""
    features = contract.features
    if prompt.multi_item_delimiter_indices is not None:
        _check_places("multi_item_delimiter_indices", prompt.multi_item_delimiter_indices, count)
        if not features.enable_mis:
            raise RequestRejected(
                "multi_item_delimiter_indices needs an engine that was started with --enable-mis.",
                param="multi_item_delimiter_indices",
            )
    if prompt.token_indices_to_pool is not None:
        _check_places("token_indices_to_pool", prompt.token_indices_to_pool, count)
        # What was cached, cut off or put off isn't there to be read from.
        if not features.disable_radix_cache or features.chunked_prefill_size != -1 or features.allow_auto_truncate:
            raise RequestRejected(
                "token_indices_to_pool needs an engine that was started with --disable-radix-cache and "
                "--chunked-prefill-size -1, and without --allow-auto-truncate.",
                param="token_indices_to_pool",
            )


def _check_places(name: str, places: list[int], count: int) -> None:
    if not (places[0] >= 0 and places[-1] < count and all(a < b for a, b in pairwise(places))):
        raise RequestRejected(f"{name} must be ascending positions in a prompt of {count} tokens.", param=name)
