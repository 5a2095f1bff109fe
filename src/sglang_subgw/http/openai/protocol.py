"""The fields of /v1/completions and /v1/chat/completions: OpenAI's, and SGLang's additions to them."""

from __future__ import annotations

from typing import Any, Final

from ...errors import RequestRejected
from ..core.fields import (
    GENERATION_FIELDS,
    Field,
    FieldTable,
    at_least,
    boolean,
    hidden_states,
    integer,
    list_of,
    map_of,
    mapping,
    nullable,
    number,
    one_of,
    optional,
    refused,
    required,
    single_or_list,
    string,
    token_id_lists,
    token_ids,
    wrong,
)
from .messages import read_messages
from .response_format import read_response_format

DEFAULT_MODEL: Final = "default"
"""The model's name in a request that names none."""

_NO_MEDIA: Final = "only text is implemented"
_NO_TOOLS: Final = "tool calls are not implemented"
_NO_REASONING: Final = "reasoning parsing is not implemented"
_NOT_YET: Final = "it is not implemented"
_EFFORTS: Final = ("none", "minimal", "low", "medium", "high", "xhigh", "ultra", "max")


def _stream_options(value: Any, name: str) -> dict[str, bool]:
    options = {"include_usage": False, "continuous_usage_stats": False}
    for key, item in mapping(value, name).items():
        if key not in options:
            raise RequestRejected(f"Field '{name}.{key}' is not supported.", param=f"{name}.{key}")
        options[key] = item is not None and boolean(item, f"{name}.{key}")
    return options


def _prompt(value: Any, name: str) -> Any:
    if value in ("", []) or (isinstance(value, list) and all(item in ("", []) for item in value)):
        raise RequestRejected("Prompt cannot be empty", param=name)
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return list_of(string)(value, name) if isinstance(value[0], str) else token_id_lists(value, name)
    raise wrong(name, "a string, an array of strings, token ids or an array of token id arrays", value)


def _reasoning_effort(value: Any, name: str) -> str | float:
    if isinstance(value, str):
        return str(one_of(*_EFFORTS)(value, name))
    effort = number(value, name)
    if not 0.0 <= effort <= 0.99:
        raise RequestRejected(f"{name!r} must be from 0.0 to 0.99, not {effort}.", param=name)
    return effort


def _tool_choice(value: Any, name: str) -> Any:
    if value in ("none", "auto"):
        return value
    raise RequestRejected(f"Field {name!r} is not supported: {_NO_TOOLS}.", param=name)


_positive: Final = at_least(1)

SAMPLING: Final[tuple[Field, ...]] = (
    optional("frequency_penalty", number, 0.0),
    optional("presence_penalty", number, 0.0),
    optional("logit_bias", map_of(number)),
    optional("n", _positive, 1),
    optional("seed", integer),
    optional("stop", single_or_list(string)),
    # SGLang's own
    optional("min_tokens", at_least(0), 0),
    optional("regex", string),
    optional("ebnf", string),
    optional("stop_token_ids", token_ids),
    optional("stop_regex", single_or_list(string)),
    optional("no_stop_trim", boolean, False),
    optional("ignore_eos", boolean, False),
    optional("skip_special_tokens", boolean, True),
    optional("response_format", read_response_format),
    optional("custom_params", mapping),
    refused("watermark", _NOT_YET),
)
"""Those of both endpoints that say how to sample, but for those whose defaults differ."""

PREFERRED: Final[tuple[Field, ...]] = (
    optional("temperature", number, 1.0),
    optional("top_p", number, 1.0),
    optional("top_k", integer, -1),
    optional("min_p", number, 0.0),
    optional("repetition_penalty", number, 1.0),
)
"""How to sample, where a chat's defaults come from the model's generation_config, if it has any."""

_PASSED: Final[tuple[Field, ...]] = (
    *GENERATION_FIELDS,
    optional("return_hidden_states", hidden_states, False),
    optional("bootstrap_host", single_or_list(string)),
    optional("bootstrap_room", single_or_list(integer)),
)

_COMMON: Final[tuple[Field, ...]] = (
    optional("model", string, DEFAULT_MODEL),
    *_PASSED,
    optional("stream_options", _stream_options),
    # Names the end user to OpenAI; SGLang takes it and has no use for it.
    optional("user", string),
    *SAMPLING,
    # More in the answer
    optional("return_cached_tokens_details", boolean, False),
    optional("return_spec_tokens_details", boolean, False),
    optional("return_token_ids", boolean, False),
    refused("session_params", "SGLang has no use for it here; /generate takes it"),
    refused("images_config", _NO_MEDIA),
    refused("mm_processor_kwargs", _NO_MEDIA),
)

COMPLETION: Final = FieldTable(
    required("prompt", _prompt),
    *_COMMON,
    *PREFERRED,
    optional("echo", boolean, False),
    optional("logprobs", at_least(0)),
    optional("max_tokens", _positive, 16),
    optional("json_schema", string),
    optional("custom_logit_processor", string),
    refused("best_of", "choices are not ranked; ask for n", 1),
    refused("suffix", "completion templates are not implemented"),
    refused("custom_labels", _NOT_YET),
)

CHAT: Final = FieldTable(
    required("messages", read_messages),
    *_COMMON,
    optional("logprobs", boolean, False),
    optional("top_logprobs", at_least(0)),
    optional("max_tokens", at_least(0)),
    optional("max_completion_tokens", at_least(0)),
    *(optional(field.name, field.check) for field in PREFERRED),
    # The prompt
    optional("input_ids", token_ids),
    optional("continue_final_message", boolean, False),
    optional("chat_template_kwargs", mapping),
    optional("reasoning_effort", _reasoning_effort),
    optional("separate_reasoning", boolean, True),
    optional("stream_reasoning", boolean, True),
    refused("reasoning", _NO_REASONING),
    refused("thinking", _NO_REASONING),
    refused("task", _NOT_YET),
    # Tools: without any, every choice of OpenAI's that calls none is fine
    refused("tools", _NO_TOOLS),
    optional("tool_choice", _tool_choice),
    optional("parallel_tool_calls", boolean, True),
    refused("functions", _NO_TOOLS),
    refused("function_call", _NO_TOOLS, "none"),
    # More in the answer
    optional("return_prompt_token_ids", boolean, False),
    optional("return_meta_info", boolean, False),
    optional("return_input_ids_in_sglext", boolean, False),
    optional("return_output_ids_in_sglext", boolean, False),
    refused("return_sampling_mask", _NOT_YET, False),
    refused("sampling_logprobs_mode", _NOT_YET),
    refused("return_flat_raw_output_top_logprobs", _NOT_YET, False),
    refused("return_flat_raw_top_logprobs_b64", _NOT_YET, True),
    optional("custom_logit_processor", single_or_list(nullable(string))),
    *(refused(name, _NO_MEDIA) for name in ("max_dynamic_patch", "min_dynamic_patch", "video_config", "audio")),
    refused("use_audio_in_video", _NO_MEDIA, False),
    refused("modalities", _NO_MEDIA, ["text"]),
    # OpenAI's fields that SGLang doesn't know
    refused("store", _NOT_YET, False),
    *(
        refused(name, _NOT_YET)
        for name in (
            "metadata",
            "prediction",
            "prompt_cache_key",
            "safety_identifier",
            "service_tier",
            "verbosity",
            "web_search_options",
        )
    ),
)

_PASSED_NAMES: Final = (*(field.name for field in _PASSED), "custom_logit_processor")


def passed_on(values: dict[str, Any]) -> dict[str, Any]:
    """The fields that go to the engine's request under their own names."""
    return {name: values[name] for name in _PASSED_NAMES}
