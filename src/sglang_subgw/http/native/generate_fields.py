"""The fields of /generate: those of SGLang's GenerateReqInput."""

from __future__ import annotations

from typing import Any, Final

from ..core.fields import (
    GENERATION_FIELDS,
    FieldTable,
    at_least,
    boolean,
    hidden_states,
    integer,
    list_of,
    mapping,
    nullable,
    optional,
    positions,
    refused,
    single_or_list,
    string,
    texts,
    token_id_lists,
    token_ids,
)

_MULTIMODAL: Final = "only text prompts and token ids are implemented"
_INTERNAL: Final = "it is internal to SGLang"


def _logprob_ids(value: Any, name: str) -> Any:
    if isinstance(value, list) and any(isinstance(row, list) for row in value):
        return list_of(nullable(token_ids))(value, name)
    return token_ids(value, name)


FIELDS: Final = FieldTable(
    *GENERATION_FIELDS,
    # The prompt: one of them
    optional("text", texts(string, "a string or an array of strings")),
    optional("input_ids", token_id_lists),
    refused("input_embeds", _MULTIMODAL),
    # How to generate; the parameters' own names and ranges are checked with SGLang's rules
    optional("sampling_params", single_or_list(mapping)),
    # What to return
    optional("return_logprob", single_or_list(boolean)),
    optional("logprob_start_len", single_or_list(integer)),
    optional("top_logprobs_num", single_or_list(at_least(0))),
    optional("token_ids_logprob", _logprob_ids),
    optional("return_text_in_logprobs", boolean, False),
    optional("return_prompt_token_ids", boolean, False),
    optional("return_hidden_states", single_or_list(hidden_states), False),
    optional("return_indexer_topk", boolean, False),
    refused("return_sampling_mask", "it is not implemented", False),
    refused("sampling_logprobs_mode", "it is not implemented"),
    refused("return_flat_raw_top_logprobs", "it is not implemented", False),
    refused("return_flat_raw_output_top_logprobs", "it is not implemented", False),
    refused("return_flat_raw_top_logprobs_b64", "it is not implemented", False),
    refused("return_bytes", _INTERNAL, False),
    refused("return_entropy", "it is not implemented", False),
    # Sessions, adapters, processors
    optional("session_params", mapping),
    refused("lora_id", _INTERNAL),
    optional("custom_logit_processor", single_or_list(nullable(string))),
    refused("watermark", "it is not implemented"),
    # Scheduling and caching
    optional("routing_key", string),
    refused("kv_hints", "it is not implemented"),
    # Disaggregated prefill and decode
    optional("bootstrap_host", single_or_list(nullable(string))),
    optional("bootstrap_room", single_or_list(nullable(integer))),
    refused("bootstrap_pair_key", _INTERNAL),
    refused("decode_tp_size", _INTERNAL),
    # Reasoning
    optional("require_reasoning", boolean, False),
    refused("max_thinking_tokens", "it is not implemented"),
    # Prompts are never logged, so there is nothing to switch off
    optional("no_logs", boolean, False),
    refused("log_metrics", "it is not implemented", True),
    refused("custom_labels", "it is not implemented"),
    refused("conversation_id", "it is not implemented"),
    refused("background", "it is not implemented", False),
    refused("external_trace_header", _INTERNAL),
    refused("received_time", _INTERNAL),
    refused("http_worker_ipc", _INTERNAL),
    # Images, audio, video
    *(
        refused(name, _MULTIMODAL)
        for name in (
            "image_data",
            "video_data",
            "audio_data",
            "mm_hashes",
            "mm_content_hashes",
            "video_config",
            "modalities",
            "positional_embed_overrides",
            "need_wait_for_mm_inputs",
            "num_items_assigned",
            "encoder_urls",
            "max_dynamic_patch",
            "min_dynamic_patch",
            "image_max_dynamic_patch",
            "video_max_dynamic_patch",
            "images_config",
            "mm_processor_kwargs",
        )
    ),
    refused("use_audio_in_video", _MULTIMODAL, False),
    # Scoring
    optional("multi_item_delimiter_indices", positions),
    optional("token_indices_to_pool", positions),
)
