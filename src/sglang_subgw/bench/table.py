"""Results in the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from .results import Variant, ratio, ties
from .runner import Outcome

_PARTS = ("shards", "main", "detokenizer", "scheduler", "load")


def render(outcome: Outcome) -> str:
    """One scenario as text."""
    return "\n".join(_lines(outcome))


def _lines(outcome: Outcome) -> Iterator[str]:
    scenario, variants = outcome.scenario, outcome.variants
    per = scenario.per
    yield ""
    yield f"{scenario.name}: {scenario.about}"
    rounds = len(variants[0].runs) if variants else 0
    yield f"CPU in µs per {per}, median of {rounds} rounds (± half the spread); times in ms, memory in MB"
    yield ""
    used = [part for part in _PARTS if any(variant.value(f"{part} us/{per}") for variant in variants)]
    columns = [
        *((f"{part} us/{per}", part) for part in used),
        ("events/s", "events/s"),
        ("requests/s", "requests/s"),
        ("ttft p50", "ttft p50"),
        ("ttft p99", "p99"),
        ("gap p50", "gap p50"),
        ("gap p99", "p99"),
        ("gap p99.9", "p99.9"),
        ("latency p50", "latency p50"),
        ("latency p99", "p99"),
        ("shards uss", "uss"),
        ("start", "start s"),
        ("balance", "balance"),
        ("errors", "errors"),
    ]
    columns = [(metric, head) for metric, head in columns if _worth_showing(variants, metric)]
    rows = [["", *(head for _, head in columns)]]
    rows += [[variant.name, *(_cell(variant, metric) for metric, _ in columns)] for variant in variants]
    yield from _table(rows)
    yield ""
    yield from _ratios(outcome)
    yield from _ties(variants, f"shards us/{per}", f"CPU of the shards per {per}")


def _worth_showing(variants: Sequence[Variant], metric: str) -> bool:
    values = [value.high for variant in variants if (value := variant.value(metric)) is not None]
    if metric in ("errors", "events/s", "requests/s"):
        return any(values)
    return bool(values)


def _cell(variant: Variant, metric: str) -> str:
    value = variant.value(metric)
    if value is None:
        return "-"
    text = _number(value.median)
    if " us/" in metric and len(variant.runs) > 1:
        text += f" ±{_number((value.high - value.low) / 2)}"
    return text


def _number(value: float) -> str:
    size = abs(value)
    return f"{value:,.0f}" if size >= 100 else f"{value:.1f}" if size >= 10 else f"{value:.2f}"


def _ratios(outcome: Outcome) -> Iterator[str]:
    metric = f"shards us/{outcome.scenario.per}"
    ours = [v for v in outcome.variants if not v.name.startswith(("floor-", "sglang-"))]
    bases = [v for v in outcome.variants if v not in ours]
    for variant in ours:
        for base in bases:
            if base.mode == "sglang" and base.shards != variant.shards:
                continue
            times = ratio(variant, base, metric)
            if times is not None:
                share = f"1/{1 / times:.1f}" if times < 0.5 else f"{times:.2f} ×"
                yield f"  {variant.name} uses {share} of {base.name}'s CPU per {outcome.scenario.per}"


def _ties(variants: Sequence[Variant], metric: str, words: str) -> Iterator[str]:
    if len(variants[0].runs) < 2:
        yield "  One round shows no spread: nothing is said about ties."
        return
    for name, other in ties(variants, metric):
        yield f"  {name} and {other} tie in {words}: their ranges overlap"


def _table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        first, *rest = (
            cell.ljust(width) if not i else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        yield "  ".join((first, *rest)).rstrip()
