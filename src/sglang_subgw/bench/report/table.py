"""Results in the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..results import Variant
from ..runner import Outcome
from ..scenarios import Scenario
from .findings import findings

PARTS = ("shards", "main", "detokenizer", "scheduler", "engine", "load")
"""In the order in which they are shown."""


def render(scenario: Scenario, outcomes: Sequence[Outcome]) -> str:
    """One scenario as text."""
    return "\n".join(_lines(scenario, outcomes))


def columns(scenario: Scenario, variants: Sequence[Variant]) -> list[tuple[str, str]]:
    """Metric and heading of what is worth showing."""
    per = scenario.per
    background = sorted({group.name for case in scenario.cases.values() for group in case.groups if group.background})
    wanted = [
        *((f"{part} us/{per}", part) for part in PARTS),
        *([("tokens/s", "tokens/s")] if per == "token" else []),
        *([("shards cores", "cores")] if per == "token" or background else []),
        ("events/s", "events/s"),
        ("requests/s", "requests/s"),
        ("ttft p50", "ttft"),
        ("ttft p99", "p99"),
        ("gap p50", "gap"),
        ("gap p99", "p99"),
        ("gap p99.9", "p99.9"),
        *([("late p99", "late p99")] if "late p99" in scenario.compared else []),
        ("latency p50", "latency"),
        ("latency p99", "p99"),
        *((f"{name} p99", f"{name} p99") for name in background),
        ("shards uss", "MB"),
        ("kB/stream", "kB/stream"),
        ("balance", "balance"),
        ("start", "start s"),
        ("errors", "errors"),
    ]
    return [(metric, head) for metric, head in wanted if _worth_showing(variants, metric)]


def _lines(scenario: Scenario, outcomes: Sequence[Outcome]) -> Iterator[str]:
    variants = [variant for outcome in outcomes for variant in outcome.variants]
    yield ""
    yield f"{scenario.name}: {scenario.about}"
    yield (
        f"CPU in µs per {scenario.per}, median of {len(variants[0].runs)} rounds, ± half the range; times in ms; "
        "MB private memory of the shards"
    )
    yield ""
    shown = columns(scenario, variants)
    rows = [["", *(head for _, head in shown)]]
    for outcome in outcomes:
        if outcome.case:
            rows.append([f"{outcome.case}", *("" for _ in shown)])
        indent = "  " if outcome.case else ""
        rows += [[indent + one.name, *(cell(one, metric) for metric, _ in shown)] for one in outcome.variants]
    yield from _table(rows)
    yield ""
    yield from (f"  {text}" for text in findings(scenario, outcomes))


def _worth_showing(variants: Sequence[Variant], metric: str) -> bool:
    values = [value.high for variant in variants if (value := variant.value(metric)) is not None]
    if metric == "balance":
        return any(variant.shards > 1 for variant in variants)
    if metric in ("errors", "events/s", "requests/s"):
        return any(values)
    return bool(values)


def cell(variant: Variant, metric: str) -> str:
    """A metric as text, with its spread where it is a cost."""
    value = variant.value(metric)
    if value is None:
        return "-"
    text = number(value.median)
    if (" us/" in metric or metric == "tokens/s") and len(variant.runs) > 1:
        text += f" ±{number((value.high - value.low) / 2)}"
    return text


def number(value: float) -> str:
    """Three digits or so."""
    size = abs(value)
    return f"{value:,.0f}" if size >= 100 or value == 0 else f"{value:.1f}" if size >= 10 else f"{value:.2f}"


def _table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for first, *others in rows:
        rest = (text.rjust(width) for text, width in zip(others, widths[1:], strict=True))
        yield "  ".join((first.ljust(widths[0]), *rest)).rstrip()
