"""A client's request as single prompts: batches and parallel samples taken apart, every field of one kind."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from ..errors import RequestRejected
from .request import GenerateRequest
from .rids import HEALTH_CHECK
from .sampling import sample_count

MAX_ANSWERS: Final = 16384
"""In one request; each takes memory in the shard before the engine can say no."""


@dataclass(slots=True)
class Prompt:
    """One prompt of a request, with the fields that can differ from prompt to prompt."""

    text: str | None
    input_ids: list[int] | None
    sampling_params: dict[str, Any]
    rid: str | None
    """The client's name for it, or None."""
    return_logprob: bool
    logprob_start_len: int
    top_logprobs_num: int
    token_ids_logprob: list[int] | None
    return_hidden_states: bool | str
    lora_path: str | None
    """The adapter's name."""
    custom_logit_processor: str | None
    bootstrap_host: str | None
    bootstrap_port: int | None
    bootstrap_room: int | None
    extra_key: str | None
    cache_salt: str | None


@dataclass(slots=True)
class Plan:
    """What a request asks for: prompts, samples of each, and the names that the client gave."""

    prompts: list[Prompt]
    samples: int
    """Samples per prompt: answers are in the order prompt 0 sample 0, prompt 0 sample 1 …"""
    is_single: bool
    batch_name: str | None
    """The one rid that a client gave to a whole batch: good for aborting it all."""


def expand(request: GenerateRequest) -> Plan:
    """Take a request apart, with SGLang's rules and messages; raises RequestRejected."""
    is_batch, count = _shape(request)
    params = request.sampling_params
    samples = _samples(params, count)
    if count * samples > MAX_ANSWERS:
        raise RequestRejected(
            f"One request may ask for {MAX_ANSWERS} answers, not for {count * samples} "
            f"({count} prompts, n={samples}): send several.",
            param="n",
        )
    # SGLang answers several samples of one prompt as a batch.
    is_single = not is_batch and samples == 1
    rids, batch_name = _names(request.rid, count, is_single=is_single)

    def split(
        name: str, check: Callable[[Any], bool], kind: str, default: Any = None, *, lists: bool = True
    ) -> list[Any]:
        value = getattr(request, name)
        if value is None:
            return [default] * count
        values = _per_prompt(name, value, count, is_batch=is_batch, several=samples > 1 and not lists)
        for item in values:
            if item is not None and not check(item):
                raise _wrong(name, kind, item)
        return [default if item is None else item for item in values]

    columns = {
        "text": split("text", _is_text, "a string"),
        "input_ids": _split_ids(request, count, is_batch=is_batch),
        "sampling_params": split("sampling_params", _is_dict, "an object", {}),
        "rid": rids,
        "return_logprob": split("return_logprob", _is_bool, "a boolean", False, lists=False),
        "logprob_start_len": split("logprob_start_len", _is_int, "an integer", -1, lists=False),
        "top_logprobs_num": split("top_logprobs_num", _is_int, "an integer", 0, lists=False),
        "token_ids_logprob": _split_token_ids(request.token_ids_logprob, count, is_batch=is_batch, samples=samples),
        "return_hidden_states": split("return_hidden_states", _is_hidden, "a boolean or the string literal 'last'"),
        "lora_path": [name or None for name in split("lora_path", _is_text, "a string")],
        "custom_logit_processor": split("custom_logit_processor", _is_text, "a string", lists=False),
        "bootstrap_host": split("bootstrap_host", _is_text, "a string"),
        "bootstrap_port": split("bootstrap_port", _is_int, "an integer"),
        "bootstrap_room": _rooms(split("bootstrap_room", _is_int, "an integer"), request.bootstrap_room),
        "extra_key": [key or None for key in split("extra_key", _is_text, "a string")],
        "cache_salt": [salt or None for salt in split("cache_salt", _is_text, "a string")],
    }
    prompts = [Prompt(**dict(zip(columns, row, strict=True))) for row in zip(*columns.values(), strict=True)]
    return Plan(prompts=prompts, samples=samples, is_single=is_single, batch_name=batch_name)


def _shape(request: GenerateRequest) -> tuple[bool, int]:
    """Whether it is a batch, and of how many prompts."""
    if request.text is None and request.input_ids is None:
        raise RequestRejected("Either text, input_ids or input_embeds should be provided.")
    if request.text is not None:
        if request.input_ids is not None:
            raise RequestRejected("text and input_ids can't both be given.", param="input_ids")
        if not isinstance(request.text, list):
            return False, 1
        if not request.text:
            raise RequestRejected("text cannot be empty.", param="text")
        return True, len(request.text)
    ids = request.input_ids
    if not isinstance(ids, list):
        raise _wrong("input_ids", "a list of integers, or a list of such lists", ids)
    if not ids:
        if isinstance(request.session_params, dict) and request.session_params.get("id"):
            return False, 1
        raise RequestRejected("input_ids cannot be empty.", param="input_ids")
    if not isinstance(ids[0], list):
        return False, 1
    return True, len(ids)


def _samples(params: Any, count: int) -> int:
    if params is None:
        return 1
    rows = params if isinstance(params, list) else [params]
    if not all(isinstance(row, dict) for row in rows):
        raise _wrong("sampling_params", "an object, or a list of them", params)
    if isinstance(params, list) and len(params) != count:
        raise RequestRejected(
            "The length of sampling_params should be equal to the batch size.", param="sampling_params"
        )
    counts = {sample_count(row) for row in rows}
    if len(counts) > 1:
        raise RequestRejected("The parallel_sample_num should be the same for all samples in sample params.", param="n")
    return counts.pop()


def _names(rid: Any, count: int, *, is_single: bool) -> tuple[list[str | None], str | None]:
    """Each prompt's own name, and the name of the whole batch."""
    if rid is None:
        return [None] * count, None
    if isinstance(rid, str):
        _check_rid(rid)
        return ([rid], None) if is_single else ([f"{rid}_{i}" for i in range(count)], rid)
    if not isinstance(rid, list):
        raise RequestRejected("The rid should be a string or a list of strings.", param="rid")
    if is_single or len(rid) != count:
        raise RequestRejected(
            "The specified rids length mismatch with the batch_size for batch processing.", param="rid"
        )
    for name in rid:
        _check_rid(name)
    if len(set(rid)) != len(rid):
        twice = list(dict.fromkeys(name for name in rid if rid.count(name) > 1))
        raise RequestRejected(f"Duplicate request IDs detected within the request: {twice}", param="rid")
    return list(rid), None


def _check_rid(rid: Any) -> None:
    if not _is_text(rid):
        raise _wrong("rid", "a string", rid)
    if not rid:
        raise RequestRejected("rid must not be empty.", param="rid")
    if rid.startswith(HEALTH_CHECK):
        raise RequestRejected(f"rid must not start with {HEALTH_CHECK}: that is SGLang's own.", param="rid")


def _per_prompt(name: str, value: Any, count: int, *, is_batch: bool, several: bool) -> list[Any]:
    if not isinstance(value, list):
        return [value] * count
    if not is_batch:
        raise RequestRejected(f"{name} should not be a list for a single request.", param=name)
    if several:
        raise RequestRejected(f"Cannot use list {name} with parallel_sample_num > 1", param=name)
    if len(value) != count:
        raise RequestRejected(f"The length of {name} should be equal to the batch size.", param=name)
    return value


def _split_ids(request: GenerateRequest, count: int, *, is_batch: bool) -> list[list[int] | None]:
    ids: Any = request.input_ids
    if ids is None:
        return [None] * count
    rows = ids if is_batch else [ids]
    for row in rows:
        if not isinstance(row, list) or not _INT_ONLY.issuperset(map(type, row)):
            raise RequestRejected("input_ids must be a list of integers, or a list of such lists.", param="input_ids")
        if is_batch and not row:
            raise RequestRejected("input_ids cannot be empty.", param="input_ids")
    return [list(row) for row in rows]


def _split_token_ids(value: Any, count: int, *, is_batch: bool, samples: int) -> list[list[int] | None]:
    if not value and value != 0:
        return [None] * count
    if not isinstance(value, list):
        value = [value]
    if not any(isinstance(row, list) for row in value):
        return [list(value) for _ in range(count)]
    rows = _per_prompt("token_ids_logprob", value, count, is_batch=is_batch, several=samples > 1)
    return [row or None for row in rows]


def _rooms(values: list[int | None], given: Any) -> list[int | None]:
    """One room for a whole batch stands for as many as it has prompts, counted upwards."""
    if isinstance(given, list):
        return values
    return [None if room is None else room + i for i, room in enumerate(values)]


_INT_ONLY: Final = frozenset({int})


def _is_text(value: Any) -> bool:
    if type(value) is not str:
        return False
    if value.isascii():
        return True
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_dict(value: Any) -> bool:
    return isinstance(value, dict)


def _is_bool(value: Any) -> bool:
    return type(value) is bool


def _is_int(value: Any) -> bool:
    return type(value) is int and -(2**63) <= value < 2**63


def _is_hidden(value: Any) -> bool:
    return type(value) is bool or value == "last"


def _wrong(name: str, kind: str, value: Any) -> RequestRejected:
    text = ascii(value)
    return RequestRejected(f"{name} must be {kind}, got {text[:60]}{'…' if len(text) > 60 else ''}.", param=name)
