"""SGLang's `meta_info`, built when an answer is asked for, key by key as its TokenizerManager does."""

from __future__ import annotations

import time
from typing import Any, Final

from ...wire.message import TimeStats
from .facts import AnswerFacts, SampleState
from .logprobs import column

_MEDIA: Final = ("image_tokens", "audio_tokens", "video_tokens")
_STATES: Final = {
    "output_hidden_states": "hidden_states",
    "routed_experts": "routed_experts",
    "indexer_topk": "indexer_topk",
}
_OPTIONAL: Final = ("weight_versions", "cached_tokens_details", "dp_ranks")
_COMMON: Final = frozenset(_OPTIONAL)
_COUNTS: Final = ("completion_tokens", "prompt_tokens", "retraction_counts", "reasoning_tokens", "cached_tokens")
_STEADY: Final = ("cached_tokens_details", "dp_ranks")
_COUNTED: Final = frozenset(_STEADY)
_ROWS: Final = "sglang_subgw.rows"
_PRESENT: Final = "sglang_subgw.present"


def meta_info(
    sample: SampleState, facts: AnswerFacts, columns: dict[str, Any] | None, row: int, abort: dict[str, Any] | None
) -> dict[str, Any]:
    """The `meta_info` of the sample's last message: a row of outputs, or an AbortReq that came back."""
    if abort is not None or columns is None:
        return _of_abort(sample, facts, abort or {})
    meta, stats = _begin(sample, facts, columns, row)
    if sample.logprobs is not None:
        sample.logprobs.add_to(meta)
    completion_tokens = column(columns, "completion_tokens", row)
    meta["reasoning_tokens"] = column(columns, "reasoning_tokens", row)
    meta["completion_tokens"] = completion_tokens
    meta["cached_tokens"] = column(columns, "cached_tokens", row)
    present = _present(columns)
    if present or sample.customized:
        _add_optional(meta, sample, columns, row, present)
    if sample.finished:
        meta["e2e_latency"] = sample.finished_at - sample.created_at
        if facts.speculative:
            _add_speculation(meta, facts, columns, row, completion_tokens or 0)
        if facts.enable_metrics:
            _add_worker_times(meta, sample, stats, completion_tokens or 0)
    return meta


def counts(
    sample: SampleState, facts: AnswerFacts, columns: dict[str, Any], row: int
) -> tuple[int, tuple[Any, ...]] | None:
    """Tokens so far, and all else that may differ between two answers of a sample that goes on.

    None where its `meta_info` holds more than that.
    """
    rows: list[tuple[int, tuple[Any, ...]]] | None = columns.get(_ROWS)
    if rows is None:
        rows = columns[_ROWS] = _rows(columns)
    if row >= len(rows) or facts.enable_metrics or sample.customized:
        return None
    return rows[row]


def _rows(columns: dict[str, Any]) -> list[tuple[int, tuple[Any, ...]]]:
    """`counts` of all rows of a message, none if it has more or less than these; worked out once, and kept with it."""
    present = _present(columns)
    names = [*_COUNTS, *(name for name in _STEADY if name in present)]
    values: list[Any] = [columns.get(name) for name in names]
    if not present <= _COUNTED or any(type(column) is not list for column in values):
        return []
    tokens, *others = values
    size = len(tokens)
    if any(len(column) != size for column in others):
        return []
    if not set(map(type, tokens)) <= {int}:
        return []
    # The names as well: a value may mean one column here, and another in the next message.
    return list(zip(tokens, zip(*others, [present] * size, strict=True), strict=True))


def embedding_meta(sample: SampleState, facts: AnswerFacts, columns: dict[str, Any], row: int) -> dict[str, Any]:
    """The `meta_info` of an embedding."""
    meta, stats = _begin(sample, facts, columns, row)
    if sample.finished:
        meta["e2e_latency"] = sample.finished_at - sample.created_at
        if facts.enable_metrics:
            _add_worker_times(meta, sample, stats, 0)
    return meta


def _begin(
    sample: SampleState, facts: AnswerFacts, columns: dict[str, Any], row: int
) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """What every answer of the engine's begins with, and the scheduler's statistics of it."""
    meta: dict[str, Any] = {
        "id": sample.public_id,
        "finish_reason": sample.finish_reason,
        "prompt_tokens": column(columns, "prompt_tokens", row),
        "weight_version": facts.weight_version,
        "num_retractions": column(columns, "retraction_counts", row),
    }
    stats: dict[str, Any] | None = None
    if facts.enable_metrics and columns.get("time_stats") is not None:
        times = column(columns, "time_stats", row)
        stats = vars(times) if isinstance(times, TimeStats) else {}
        meta.update(_scheduler_times(stats))
    return meta, stats


def _present(columns: dict[str, Any]) -> frozenset[str]:
    """Which of the optional columns say anything; worked out once for all rows of a message, and kept with it."""
    present: frozenset[str] | None = columns.get(_PRESENT)
    if present is None:
        names = [name for name in _OPTIONAL if columns.get(name)]
        names += [name for name in _MEDIA if any(columns.get(name) or ())]
        names += [name for name in _STATES if any(value is not None for value in columns.get(name) or ())]
        present = columns[_PRESENT] = frozenset(names)
    return present


def _add_optional(
    meta: dict[str, Any], sample: SampleState, columns: dict[str, Any], row: int, present: frozenset[str]
) -> None:
    if "weight_versions" in present and (spans := column(columns, "weight_versions", row)) is not None:
        _add_weight_versions(meta, spans, meta["completion_tokens"] or 0)
    if "cached_tokens_details" in present:
        meta["cached_tokens_details"] = column(columns, "cached_tokens_details", row)
    meta.update(sample.customized)
    if not present <= _COMMON:
        for name in _MEDIA:
            if name in present and (count := column(columns, name, row)):
                meta[name] = count
        for name, key in _STATES.items():
            if name in present and (value := column(columns, name, row)) is not None:
                meta[key] = value
    if "dp_ranks" in present:
        meta["dp_rank"] = column(columns, "dp_ranks", row)


def _of_abort(sample: SampleState, facts: AnswerFacts, abort: dict[str, Any]) -> dict[str, Any]:
    meta: dict[str, Any] = {
        "id": sample.public_id,
        "finish_reason": sample.finish_reason,
        "weight_version": facts.weight_version,
    }
    if sample.finished:
        meta["e2e_latency"] = sample.finished_at - sample.created_at
    if abort.get("weight_versions") is not None:
        _add_weight_versions(meta, abort["weight_versions"], len(sample.output_ids))
    if sample.logprobs is not None:
        sample.logprobs.add_to(meta)
    meta["completion_tokens"] = len(sample.output_ids)
    return meta


def _add_weight_versions(meta: dict[str, Any], spans: list[Any], tokens: int) -> None:
    visible = [span.fields for span in spans]
    visible = [span for span in visible if span["start"] < tokens or span["start"] == 0]
    meta["weight_versions"] = [
        {"version": span["version"], "start": span["start"], "end": min(span["end"], tokens)} for span in visible
    ]
    if visible:
        meta["weight_version"] = visible[-1]["version"]


def _add_speculation(
    meta: dict[str, Any], facts: AnswerFacts, columns: dict[str, Any], row: int, completion_tokens: int
) -> None:
    steps = column(columns, "spec_verify_ct", row) or 0
    correct = column(columns, "spec_num_correct_drafts", row)
    if steps <= 0 or correct is None:
        return
    proposed = steps * (facts.draft_tokens - 1)
    if proposed > 0:
        meta["spec_accept_rate"] = correct / proposed
        meta["spec_accept_length"] = completion_tokens / steps
        meta["spec_num_correct_drafts"] = correct
        meta["spec_num_proposed_drafts"] = proposed
        meta["spec_verify_ct"] = steps
        capped = column(columns, "spec_num_cap_tokens", row)
        if capped:
            meta["spec_cap_length"] = capped / steps
    for key in ("spec_correct_drafts_histogram", "spec_cap_lens_histogram"):
        if histogram := column(columns, key, row):
            meta[key] = histogram


def _scheduler_times(stats: dict[str, Any]) -> dict[str, Any]:
    times: dict[str, Any] = {}
    for key in ("storage_prefetch_wait", "storage_staging_wait"):
        if stats.get(f"{key}_s") is not None:
            times[key] = stats[f"{key}_s"]
    for key in ("forward_entry_time", "prefill_finished_time"):
        if stats.get(key, 0.0) > 0.0:
            times[key] = _wall_clock(stats[key])
    times["queue_time"] = stats.get("queue_duration_s", 0.0)
    return times


def _add_worker_times(
    meta: dict[str, Any], sample: SampleState, stats: dict[str, Any] | None, completion_tokens: int
) -> None:
    first = sample.first_at
    prefilled = (stats or {}).get("prefill_finished_time", 0.0)
    if not sample.stream and sample.created_at < prefilled <= time.perf_counter():
        first = prefilled
    meta["request_received_ts"] = _wall_clock(sample.created_at)
    if first > sample.created_at:
        meta["first_token_latency"] = first - sample.created_at
    if sample.sent_at:
        meta["api_server_dispatch_finish_ts"] = _wall_clock(sample.sent_at)
    meta["request_finished_ts"] = _wall_clock(sample.finished_at)
    decoding = sample.finished_at - first
    if first > 0.0 and completion_tokens > 1 and decoding > 0.0:
        meta["decode_throughput"] = (completion_tokens - 1) / decoding


def _wall_clock(perf_counter: float) -> float:
    return time.time() - time.perf_counter() + perf_counter
