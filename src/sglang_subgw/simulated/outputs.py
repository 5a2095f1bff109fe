"""One step's BatchStrOutput messages: the columns SGLang's detokenizer fills, split per worker."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from typing import Any

from .generation import SimulatedGeneration
from .script import logprob_of, top_logprobs
from .wire.structs import StandIn, StandInTimeStats, make

type Row = dict[str, Any]

_OUTPUT_COLUMNS = (
    "output_token_logprobs_val",
    "output_token_logprobs_idx",
    "output_top_logprobs_val",
    "output_top_logprobs_idx",
    "output_token_ids_logprobs_val",
    "output_token_ids_logprobs_idx",
)
_INPUT_COLUMNS = tuple(name.replace("output_", "input_") for name in _OUTPUT_COLUMNS)
_UNUSED_COLUMNS = dict.fromkeys(
    (
        "output_token_entropy_val",
        "output_token_sampling_mask",
        "output_hidden_states",
        "routed_experts",
        "indexer_topk",
        "placeholder_tokens_idx",
        "placeholder_tokens_val",
    )
)


def messages(
    due: list[SimulatedGeneration], *, grouped: bool, weight_version: str, vocab_size: int
) -> Iterator[tuple[str, StandIn]]:
    """(worker endpoint, message) pairs for the requests that have something to send."""
    logprobs = any(generation.return_logprob for generation in due)
    by_worker: dict[str, list[Row]] = {}
    for generation in due:
        row = _row(generation, weight_version)
        if logprobs:
            row |= _logprob_columns(generation, row, vocab_size)
        by_worker.setdefault(generation.worker, []).append(row)
    for worker, rows in by_worker.items():
        if grouped:
            yield worker, _message(rows, [worker] * len(rows))
        else:
            for row in rows:
                yield worker, _message([row], None)


def _message(rows: list[Row], workers: list[str] | None) -> StandIn:
    columns: dict[str, Any] = {name: [row[name] for row in rows] for name in rows[0]}
    if not any(columns["weight_versions"]):
        columns["weight_versions"] = None
    for name in (*_INPUT_COLUMNS, *_OUTPUT_COLUMNS):
        columns.setdefault(name, None)
    return make("BatchStrOutput", http_worker_ipcs=workers, **columns, **_UNUSED_COLUMNS)


def _row(generation: SimulatedGeneration, weight_version: str) -> Row:
    text, ids, start = generation.take()
    done = generation.finish_reason is not None
    return {
        "rids": generation.rid,
        "finished_reasons": generation.finish_reason,
        "output_strs": text,
        "output_ids": array("q", ids),
        "prompt_tokens": len(generation.prompt),
        "completion_tokens": start + len(ids),
        "reasoning_tokens": 0,
        "cached_tokens": generation.cached_tokens,
        "retraction_counts": generation.retractions,
        "weight_versions": generation.weight_versions(weight_version) if done else None,
        "cached_tokens_details": None,
        "dp_ranks": 0,
        "time_stats": StandInTimeStats(),
        "image_tokens": 0,
        "audio_tokens": 0,
        "video_tokens": 0,
    }


def _logprob_columns(generation: SimulatedGeneration, row: Row, vocab_size: int) -> Row:
    """This request's own log probabilities, or [] when only others of the step asked for them."""
    columns: Row = dict.fromkeys((*_INPUT_COLUMNS, *_OUTPUT_COLUMNS))
    columns = {name: [] for name in columns}
    if not generation.return_logprob:
        return columns
    places = _places(generation)
    # One token has its logprobs even where none is wanted, but where they are read at places of the prompt.
    ids = list(row["output_ids"]) if generation.limit else [0] * (places is None)
    start = row["completion_tokens"] - len(row["output_ids"])
    at = len(generation.prompt) + start
    columns |= zip(_OUTPUT_COLUMNS, _values(generation, enumerate(ids, at), vocab_size), strict=True)
    if not generation.input_logprobs_sent:
        generation.input_logprobs_sent = True
        values = _input_values(generation, vocab_size) if places is None else _place_values(generation, places)
        columns |= zip(_INPUT_COLUMNS, values, strict=True)
    return columns


def _places(generation: SimulatedGeneration) -> list[int] | None:
    """The positions whose tokens are scored, for a request that asks for places of its prompt."""
    request = generation.request
    if request.token_indices_to_pool is not None:
        return [place + 1 for place in request.token_indices_to_pool]
    places: list[int] | None = request.multi_item_delimiter_indices
    return places


def _place_values(generation: SimulatedGeneration, places: list[int]) -> list[list[Any]]:
    wanted = generation.request.token_ids_logprob
    values = [[logprob_of(token, place) for token in wanted] for place in places]
    return [[0.0] * len(places), [0] * len(places), [], [], values, [list(wanted) for _ in places]]


def _input_values(generation: SimulatedGeneration, vocab_size: int) -> list[list[Any]]:
    first = generation.request.logprob_start_len
    tokens = list(enumerate(generation.prompt))[first:] if first >= 0 else []
    if not tokens:
        return [[] for _ in _INPUT_COLUMNS]
    values = _values(generation, tokens, vocab_size)
    # The first token has nothing before it to be predicted from.
    for column in (0, 2, 3, 4, 5):
        if values[column]:
            values[column][0] = None
    return values


def _values(generation: SimulatedGeneration, tokens: Iterable[tuple[int, int]], vocab_size: int) -> list[list[Any]]:
    top = generation.request.top_logprobs_num
    wanted = generation.request.token_ids_logprob
    out: list[list[Any]] = [[] for _ in _OUTPUT_COLUMNS]
    for position, token in tokens:
        out[0].append(logprob_of(token, position))
        out[1].append(token)
        if top:
            values, ids = top_logprobs(token, position, top, vocab_size)
            out[2].append(values)
            out[3].append(ids)
        if wanted is not None:
            out[4].append([logprob_of(i, position) for i in wanted])
            out[5].append(list(wanted))
    return out
