"""What the simulated model answers: token ids by a script, log probabilities by a formula, both reproducible."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, cycle
from typing import Any

from .tokenizer import ByteTokenizer
from .wire.structs import StandIn

type Script = Callable[[StandIn, ByteTokenizer], Iterable[int]]
"""From a request to the ids the model would sample for it, endless or ending in the end-of-sequence id."""


def echo(request: StandIn, tokenizer: ByteTokenizer) -> Iterator[int]:
    """The prompt without its special tokens: over and over up to max_new_tokens, or once when there is no limit."""
    specials = set(tokenizer.special_ids.values())
    ids = [i for i in request.input_ids if i not in specials] or tokenizer.encode_bytes("?")
    if request.sampling_params.max_new_tokens is None:
        return chain(ids, [tokenizer.eos_token_id])
    return cycle(ids)


def fixed_text(text: str) -> Script:
    """A script that answers `text`, one byte a token, and then ends."""

    def answer(request: StandIn, tokenizer: ByteTokenizer) -> Iterator[int]:
        return chain(tokenizer.encode_bytes(text), [tokenizer.eos_token_id])

    return answer


def constrained(script: Script) -> Script:
    """The script, or the smallest instance of the JSON schema when a request carries one."""

    def answer(request: StandIn, tokenizer: ByteTokenizer) -> Iterable[int]:
        schema = request.sampling_params.json_schema
        if schema is None:
            return script(request, tokenizer)
        return chain(tokenizer.encode_bytes(json.dumps(_instance(json.loads(schema)))), [tokenizer.eos_token_id])

    return answer


def grammar_error(params: StandIn) -> str:
    """Why a grammar of these sampling parameters doesn't compile, "" if it does."""
    if params.json_schema is not None:
        try:
            schema = json.loads(params.json_schema)
        except ValueError as exc:
            return f"Failed to compile json grammar: {exc}"
        if not isinstance(schema, dict | bool):
            return "Failed to compile json grammar: a schema is an object or a boolean"
    if params.regex is not None and params.regex.count("(") != params.regex.count(")"):
        return f"Failed to compile regex grammar: unbalanced parenthesis in {params.regex!r}"
    return ""


def logprob_of(token: int, position: int) -> float:
    """The log probability of `token` at `position` of prompt plus output; the same everywhere, exact in binary."""
    return -((token * 7 + position * 13) % 64 + 1) / 16


def top_logprobs(token: int, position: int, count: int, vocab_size: int) -> tuple[list[float], list[int]]:
    """The `count` best alternatives, the sampled token first."""
    best = logprob_of(token, position)
    return [best - rank / 8 for rank in range(count)], [(token + rank) % vocab_size for rank in range(count)]


def _instance(schema: Any) -> Any:
    if not isinstance(schema, dict):
        return {}
    if "const" in schema:
        return schema["const"]
    if schema.get("enum"):
        return schema["enum"][0]
    match schema.get("type"):
        case "string":
            return "a"
        case "integer" | "number":
            return 1
        case "boolean":
            return True
        case "null":
            return None
        case "array":
            return []
    return {name: _instance(inner) for name, inner in schema.get("properties", {}).items()}
