"""A client's generate request as single prompts: batches and parallel samples taken apart, every field of one kind."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..errors import RequestRejected
from ..wire.values import is_bool, is_hidden, is_int, is_str
from .plan import Columns, Plan, id_shape, is_object, text_shape, wrong
from .request import GenerateRequest
from .sampling import sample_count


@dataclass(slots=True)
class Prompt:
    """One prompt of a request, with the fields that can differ from prompt to prompt."""

    text: str | None
    input_ids: list[int] | None
    sampling_params: dict[str, Any]
    rid: str | None
    return_logprob: bool
    logprob_start_len: int
    top_logprobs_num: int
    token_ids_logprob: list[int] | None
    return_hidden_states: bool | str
    lora_path: str | None
    custom_logit_processor: str | None
    bootstrap_host: str | None
    bootstrap_port: int | None
    bootstrap_room: int | None
    extra_key: str | None
    cache_salt: str | None
    multi_item_delimiter_indices: list[int] | None
    token_indices_to_pool: list[int] | None


def expand(request: GenerateRequest) -> Plan[Prompt]:
    """Take a request apart, with SGLang's rules and messages; raises RequestRejected."""
    is_batch, count = _shape(request)
    samples = _samples(request.sampling_params, count)
    columns = Columns(request, count, is_batch=is_batch, samples=samples)
    rids, batch_name = columns.names()
    split = columns.split
    values = {
        "text": split("text", is_str, "a string"),
        "input_ids": columns.input_ids(),
        "sampling_params": split("sampling_params", is_object, "an object", {}),
        "rid": rids,
        "return_logprob": split("return_logprob", is_bool, "a boolean", False, lists=False),
        "logprob_start_len": split("logprob_start_len", is_int, "an integer", -1, lists=False),
        "top_logprobs_num": split("top_logprobs_num", is_int, "an integer", 0, lists=False),
        "token_ids_logprob": _split_token_ids(request.token_ids_logprob, columns, count),
        "return_hidden_states": split("return_hidden_states", is_hidden, "a boolean or the string literal 'last'"),
        "lora_path": [name or None for name in split("lora_path", is_str, "a string")],
        "custom_logit_processor": split("custom_logit_processor", is_str, "a string", lists=False),
        "bootstrap_host": split("bootstrap_host", is_str, "a string"),
        "bootstrap_port": split("bootstrap_port", is_int, "an integer"),
        "bootstrap_room": _rooms(split("bootstrap_room", is_int, "an integer"), request.bootstrap_room),
        "extra_key": [key or None for key in split("extra_key", is_str, "a string")],
        "cache_salt": [salt or None for salt in split("cache_salt", is_str, "a string")],
        "multi_item_delimiter_indices": columns.int_lists("multi_item_delimiter_indices"),
        "token_indices_to_pool": columns.int_lists("token_indices_to_pool"),
    }
    prompts = [Prompt(**dict(zip(values, row, strict=True))) for row in zip(*values.values(), strict=True)]
    return Plan(prompts=prompts, samples=samples, is_single=columns.is_single, batch_name=batch_name)


def _shape(request: GenerateRequest) -> tuple[bool, int]:
    """Whether it is a batch, and of how many prompts."""
    if request.text is None and request.input_ids is None:
        raise RequestRejected("Either text, input_ids or input_embeds should be provided.")
    if request.text is not None:
        if request.input_ids is not None:
            raise RequestRejected("text and input_ids can't both be given.", param="input_ids")
        return text_shape(request.text)
    if request.input_ids == [] and isinstance(request.session_params, dict) and request.session_params.get("id"):
        return False, 1
    return id_shape(request.input_ids)


def _samples(params: Any, count: int) -> int:
    if params is None:
        return 1
    rows = params if isinstance(params, list) else [params]
    if not all(isinstance(row, dict) for row in rows):
        raise wrong("sampling_params", "an object, or a list of them", params)
    if isinstance(params, list) and len(params) != count:
        raise RequestRejected(
            "The length of sampling_params should be equal to the batch size.", param="sampling_params"
        )
    counts = {sample_count(row) for row in rows}
    if len(counts) > 1:
        raise RequestRejected("The parallel_sample_num should be the same for all samples in sample params.", param="n")
    return counts.pop()


def _split_token_ids(value: Any, columns: Columns, count: int) -> list[list[int] | None]:
    if not value and value != 0:
        return [None] * count
    if not isinstance(value, list):
        value = [value]
    if not any(isinstance(row, list) for row in value):
        return [list(value) for _ in range(count)]
    rows = columns.per_prompt("token_ids_logprob", value, lists=False)
    return [row or None for row in rows]


def _rooms(values: list[int | None], given: Any) -> list[int | None]:
    """One room for a whole batch stands for as many as it has prompts, counted upwards."""
    if isinstance(given, list):
        return values
    return [None if room is None else room + i for i, room in enumerate(values)]
