"""The fields of /encode and /classify: those of SGLang's EmbeddingReqInput."""

from __future__ import annotations

from typing import Final

from ...engine_api.embedding import ENGINE_SIDE
from ..core.fields import (
    PROMPT_FIELDS,
    FieldTable,
    any_value,
    boolean,
    integer,
    list_of,
    mapping,
    optional,
    overrides,
    positions,
    refused,
    single_or_list,
    string,
    texts,
    token_id_lists,
)

_INTERNAL: Final = "it is internal to SGLang"
_NOT_YET: Final = "it is not implemented"

ONLY_THERE: Final = (*ENGINE_SIDE, "modalities", "embed_override_token_id")
"""These, and what means nothing without them."""


_TEXTS: Final = "a string, an array of strings or an array of pairs of strings"

FIELDS: Final = FieldTable(
    *PROMPT_FIELDS,
    # The prompt: one of them
    optional("text", texts(single_or_list(string), _TEXTS)),
    optional("input_ids", token_id_lists),
    refused("input_embeds", "SGLang has no use for it here"),
    optional("image_data", any_value),
    optional("video_data", any_value),
    optional("audio_data", any_value),
    optional("modalities", list_of(string)),
    optional("embed_override_token_id", integer),
    optional("embed_overrides", overrides),
    optional("is_cross_encoder_request", boolean, False),
    # Checked, and of no effect on an embedding
    optional("sampling_params", single_or_list(mapping)),
    # More in the answer, or less
    optional("dimensions", integer),
    optional("return_pooled_hidden_states", boolean, False),
    refused("return_prompt_token_ids", "SGLang answers embeddings without them", False),
    # Scoring
    optional("multi_item_delimiter_indices", positions),
    optional("token_indices_to_pool", positions),
    refused("decision_layout", "decision_layout is set only by /v1/systemone"),
    # Adapters and scheduling
    refused("lora_id", _INTERNAL),
    # SGLang routes no embeddings by it
    optional("routing_key", string),
    refused("positional_embed_overrides", _INTERNAL),
    refused("http_worker_ipc", _INTERNAL),
    refused("external_trace_header", _INTERNAL),
    refused("received_time", _INTERNAL),
    refused("background", _NOT_YET, False),
    refused("log_metrics", _NOT_YET, True),
)
