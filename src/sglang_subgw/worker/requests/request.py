"""One client's request, to generate or to embed, as SGLang names its parts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

type OneOrMany[T] = T | list[T] | None
"""A value for a single prompt, or one per prompt of a batch."""


@dataclass(slots=True)
class GenerateRequest:
    """SGLang's GenerateReqInput, with its names and defaults, as far as a shard implements it."""

    text: OneOrMany[str] = None
    input_ids: list[int] | list[list[int]] | None = None
    sampling_params: dict[str, Any] | list[dict[str, Any]] | None = None
    rid: OneOrMany[str] = None
    """The client's own id: shown in answers and good for `abort`, never sent to the engine."""
    return_logprob: OneOrMany[bool] = None
    logprob_start_len: OneOrMany[int] = None
    top_logprobs_num: OneOrMany[int] = None
    token_ids_logprob: list[int] | list[list[int] | None] | int | None = None
    return_text_in_logprobs: bool = False
    return_prompt_token_ids: bool = False
    stream: bool = False
    return_hidden_states: bool | str | list[bool | str] = False
    return_routed_experts: bool = False
    routed_experts_start_len: int = 0
    return_indexer_topk: bool = False
    session_params: dict[str, Any] | None = None
    session_id: str | None = None
    lora_path: OneOrMany[str | None] = None
    custom_logit_processor: OneOrMany[str | None] = None
    bootstrap_host: OneOrMany[str | None] = None
    bootstrap_port: OneOrMany[int | None] = None
    bootstrap_room: OneOrMany[int | None] = None
    routed_dp_rank: int | None = None
    data_parallel_rank: int | None = None
    """Older name of `routed_dp_rank`."""
    disagg_prefill_dp_rank: int | None = None
    routing_key: str | None = None
    require_reasoning: bool = False
    priority: int | None = None
    extra_key: OneOrMany[str] = None
    cache_salt: OneOrMany[str] = None
    multi_item_delimiter_indices: list[int] | list[list[int]] | None = None
    """Multi-item scoring: where the items begin and end."""
    token_indices_to_pool: list[int] | list[list[int]] | None = None
    """Setwise scoring: the positions at which scores are read."""
    received_time: float | None = None
    """time.perf_counter() when the request arrived; None is now."""


@dataclass(slots=True)
class EmbeddingRequest:
    """SGLang's EmbeddingReqInput, with its names and defaults, as far as a shard implements it."""

    text: str | list[str] | list[list[str]] | None = None
    """A text, a batch of them, or for a cross encoder a batch of pairs."""
    input_ids: list[int] | list[list[int]] | None = None
    sampling_params: dict[str, Any] | list[dict[str, Any]] | None = None
    """Checked and sent, as SGLang does, and of no effect."""
    rid: OneOrMany[str] = None
    """The client's own id: shown in answers and good for `abort`, never sent to the engine."""
    is_cross_encoder_request: bool = False
    lora_path: OneOrMany[str | None] = None
    priority: int | None = None
    dimensions: int | None = None
    """How many numbers the embeddings have, for a model that can shorten them (Matryoshka)."""
    return_pooled_hidden_states: bool = False
    multi_item_delimiter_indices: list[int] | list[list[int]] | None = None
    token_indices_to_pool: list[int] | list[list[int]] | None = None
    received_time: float | None = None
