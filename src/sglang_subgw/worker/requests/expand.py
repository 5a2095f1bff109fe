"""A client's generate request as single prompts: batches and parallel samples taken apart, every field of one kind."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from ...errors import RequestRejected
from ...wire.outgoing.values import Check, is_bool, is_hidden, is_int, is_str
from .plan import Columns, RequestPlan, id_shape, is_object, text_shape, wrong
from .request import GenerateRequest
from .sampling import sample_count


@dataclass(slots=True, kw_only=True)
class Prompt:
    """One prompt of a request, with the fields that can differ from prompt to prompt."""

    text: str | None = None
    input_ids: list[int] | None = None
    sampling_params: dict[str, Any] = field(default_factory=dict)
    rid: str | None = None
    return_logprob: bool = False
    logprob_start_len: int = -1
    top_logprobs_num: int = 0
    token_ids_logprob: list[int] | None = None
    return_hidden_states: bool | str = False
    lora_path: str | None = None
    custom_logit_processor: str | None = None
    bootstrap_host: str | None = None
    bootstrap_port: int | None = None
    bootstrap_room: int | None = None
    extra_key: str | None = None
    cache_salt: str | None = None
    multi_item_delimiter_indices: list[int] | None = None
    token_indices_to_pool: list[int] | None = None


def expand(request: GenerateRequest) -> RequestPlan[Prompt]:
    """Take a request apart, with SGLang's rules and messages; raises RequestRejected."""
    is_batch, count = _shape(request)
    samples = _samples(request.sampling_params, count)
    columns = Columns(request, count, is_batch=is_batch, samples=samples)
    rids, batch_name = columns.names()
    values: dict[str, list[Any]] = {"rid": rids}
    for name, read in _READERS.items():
        given = getattr(request, name)
        # In most requests nearly all is left out, and has its default.
        if given is not None and not (given is False and name in _SWITCHES):
            values[name] = read(columns, given)
    prompts = [Prompt(**dict(zip(values, row, strict=True))) for row in zip(*values.values(), strict=True)]
    return RequestPlan(prompts=prompts, samples=samples, is_single=columns.is_single, batch_name=batch_name)


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
    if isinstance(params, dict):
        return sample_count(params)
    if not isinstance(params, list) or not all(isinstance(row, dict) for row in params):
        raise wrong("sampling_params", "an object, or a list of them", params)
    if len(params) != count:
        raise RequestRejected(
            "The length of sampling_params should be equal to the batch size.", param="sampling_params"
        )
    counts = {sample_count(row) for row in params}
    if len(counts) > 1:
        raise RequestRejected("The parallel_sample_num should be the same for all samples in sample params.", param="n")
    return counts.pop()


def _split_token_ids(columns: Columns, value: Any) -> list[list[int] | None]:
    if not value and value != 0:
        return [None] * columns.count
    if not isinstance(value, list):
        value = [value]
    if not any(isinstance(row, list) for row in value):
        return [list(value) for _ in range(columns.count)]
    rows = columns.per_prompt("token_ids_logprob", value, lists=False)
    return [row or None for row in rows]


def _rooms(columns: Columns, given: Any) -> list[int | None]:
    """One room for a whole batch stands for as many as it has prompts, counted upwards."""
    values = columns.split("bootstrap_room", is_int, "an integer")
    if isinstance(given, list):
        return values
    return [None if room is None else room + i for i, room in enumerate(values)]


def _read(name: str, check: Check, kind: str, default: Any = None, *, lists: bool = True) -> _Reader:
    return lambda columns, given: columns.split(name, check, kind, default, lists=lists)


def _read_name(name: str) -> _Reader:
    """An empty one is none."""
    return lambda columns, given: [value or None for value in columns.split(name, is_str, "a string")]


type _Reader = Callable[[Columns, Any], list[Any]]

_READERS: Final[dict[str, _Reader]] = {
    "text": _read("text", is_str, "a string"),
    "input_ids": lambda columns, given: columns.input_ids(),
    "sampling_params": _read("sampling_params", is_object, "an object", {}),
    "return_logprob": _read("return_logprob", is_bool, "a boolean", False, lists=False),
    "logprob_start_len": _read("logprob_start_len", is_int, "an integer", -1, lists=False),
    "top_logprobs_num": _read("top_logprobs_num", is_int, "an integer", 0, lists=False),
    "token_ids_logprob": _split_token_ids,
    "return_hidden_states": _read("return_hidden_states", is_hidden, "a boolean or the string literal 'last'"),
    "lora_path": _read_name("lora_path"),
    "custom_logit_processor": _read("custom_logit_processor", is_str, "a string", lists=False),
    "bootstrap_host": _read("bootstrap_host", is_str, "a string"),
    "bootstrap_port": _read("bootstrap_port", is_int, "an integer"),
    "bootstrap_room": _rooms,
    "extra_key": _read_name("extra_key"),
    "cache_salt": _read_name("cache_salt"),
    "multi_item_delimiter_indices": lambda columns, given: columns.int_lists("multi_item_delimiter_indices"),
    "token_indices_to_pool": lambda columns, given: columns.int_lists("token_indices_to_pool"),
}
"""How each field is taken apart, in the order in which faults are told."""

_SWITCHES: Final = frozenset({"return_logprob", "return_hidden_states"})
