"""Token counts as OpenAI's `usage`, with SGLang's additions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ...worker.answers.sample import Sample


def usage(
    prompt_tokens: int, completion_tokens: int, reasoning_tokens: int, cached_tokens: int | None = None
) -> dict[str, Any]:
    """The usage object; `cached_tokens` is None unless the engine runs with --enable-cache-report."""
    return {
        "prompt_tokens": prompt_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "completion_tokens": completion_tokens,
        "prompt_tokens_details": None if cached_tokens is None else {"cached_tokens": cached_tokens},
        "reasoning_tokens": reasoning_tokens,
        "completion_tokens_details": {"reasoning_tokens": reasoning_tokens} if reasoning_tokens else None,
    }


def total_usage(samples: Sequence[Sample], n: int, cache_report: bool) -> dict[str, Any]:
    """The usage of a whole call: a prompt counts once, however many choices it has."""
    firsts = samples[::n]
    return usage(
        sum(sample.prompt_tokens for sample in firsts),
        sum(sample.completion_tokens for sample in samples),
        sum(sample.reasoning_tokens for sample in samples),
        sum(sample.cached_tokens for sample in firsts) if cache_report else None,
    )


def sample_usage(sample: Sample, cache_report: bool = False) -> dict[str, Any]:
    """The usage of one choice so far, for stream_options.continuous_usage_stats."""
    return usage(
        sample.prompt_tokens,
        sample.completion_tokens,
        sample.reasoning_tokens,
        sample.cached_tokens if cache_report else None,
    )
