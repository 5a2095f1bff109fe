"""The results as one page that needs nothing else: charts, findings and the numbers behind them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from importlib.resources import files
from typing import Any, Final

from ..results import Variant
from ..runner import Outcome
from ..scenarios import Scenario
from ..system import machine as machine_of
from .findings import as_ratio, best_ratio, findings
from .svg import Bar, bars, distributions
from .table import PARTS, cell, columns

_CURVE: Final = tuple(0.5 * 10 ** (-i / 8) for i in range(30))
"""Shares of all that are above, from one half to about one in ten thousand."""

type Results = Sequence[tuple[Scenario, Sequence[Outcome]]]


def render(machine: Mapping[str, Any], start_seconds: Mapping[str, float], results: Results) -> str:
    """The whole page."""
    return "\n".join(_lines(machine, start_seconds, results))


def _lines(machine: Mapping[str, Any], start_seconds: Mapping[str, float], results: Results) -> Iterator[str]:
    style = files(__package__).joinpath("style.css").read_text("utf-8")
    yield '<!doctype html><html lang="en"><head><meta charset="utf-8">'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1"><title>sglang-subgw bench</title>'
    yield f"<style>{style}</style></head><body><main>"
    yield "<h1>sglang-subgw bench</h1>"
    yield f'<p class="machine">{escape(machine_of.line(machine))}</p>'
    yield (
        "<p>Every variant had its turn in every round. Bars are medians, whiskers the range over the rounds: where two "
        "overlap, this run shows no difference. The model's time is taken out, and the load generators share the "
        "machine with what they measure: ratios say more than absolute values.</p>"
    )
    links = (f'<a href="#{scenario.name}">{scenario.name}</a>' for scenario, _ in results)
    yield f"<nav>{''.join(links)}</nav>"
    for scenario, outcomes in results:
        yield from _scenario(scenario, outcomes)
    if start_seconds:
        yield "<h2>Start</h2><p>Until engines and servers were up, on this machine, once each.</p>"
        rows = [Bar(name, {"start": seconds}) for name, seconds in start_seconds.items()]
        yield f'<div class="charts">{_card("Start", bars(rows, "seconds"))}</div>'
    yield "</main></body></html>"


def _scenario(scenario: Scenario, outcomes: Sequence[Outcome]) -> Iterator[str]:
    yield f'<h2 id="{scenario.name}">{scenario.name}</h2><p>{escape(scenario.about)}</p>'
    yield from _headline(scenario, outcomes)
    items = "".join(f"<li>{escape(text)}</li>" for text in findings(scenario, outcomes))
    yield f'<ul class="findings">{items}</ul><div class="charts">'
    named = [
        (f"{outcome.case} · {variant.name}" if outcome.case else variant.name, variant)
        for outcome in outcomes
        for variant in outcome.variants
    ]
    yield from _charts(scenario, named)
    yield "</div>"
    yield f'<details open><summary>Numbers</summary><div class="scroll">{_table(scenario, outcomes)}</div></details>'


def _headline(scenario: Scenario, outcomes: Sequence[Outcome]) -> Iterator[str]:
    """The figure that most people look for, for each case that has it."""
    cards = []
    for outcome in outcomes:
        for kind, words in (
            ("sglang", "of SGLang's worker"),
            ("sglang-rust", "of its Rust server"),
            ("floor", "bare writes"),
        ):
            found = best_ratio(scenario, outcome, kind)
            if found is not None:
                name, times = found
                where = f"{outcome.case} · " if outcome.case else ""
                text = f"{words}, shard CPU per {scenario.per}"
                cards.append(
                    f'<div class="figure"><b>{escape(as_ratio(times))}</b><span>{escape(text)}<br>'
                    f"{escape(where + name)}</span></div>"
                )
    if cards:
        yield f'<div class="figures">{"".join(cards)}</div>'


def _charts(scenario: Scenario, named: Sequence[tuple[str, Variant]]) -> Iterator[str]:
    per = scenario.per
    metric = "tokens/s" if any(variant.value("tokens/s") for _, variant in named) else f"{per}s/s"
    if scenario.scaling:
        yield _chart(f"Throughput, {metric}", named, metric, metric)
    yield _chart(f"CPU of the shards per {per}", named, f"shards us/{per}", "µs")
    rows = [Bar(name, _parts(variant, per)) for name, variant in named]
    kinds = {name: variant.mode for name, variant in named}
    yield _card(f"CPU per {per} by part", bars(rows, "µs"))
    for times, title in (
        ("gap", "Between two events of a stream"),
        ("ttft", "To the first event"),
        ("latency", "To the end of an answer"),
    ):
        series = {
            name: [(above, times_of.quantile(1 - above) * 1e3) for above in _CURVE if above * times_of.count >= 1]
            for name, variant in named
            if (times_of := variant.times.get(times)) is not None and times_of.count > 1
        }
        if series:
            yield _card(title, distributions(series, kinds, "ms, by the share of all that are faster"))
    if not scenario.scaling and any(variant.mode == "url" for _, variant in named):
        yield _chart("Throughput", named, f"{per}s/s", f"{per}s/s")
    yield _chart("Private memory of the shards", named, "shards uss", "MB")
    yield _chart("Memory per stream", named, "kB/stream", "kB")
    if any(variant.shards > 1 for _, variant in named):
        yield _chart("Balance: the busiest shard's share, 1 is even", named, "balance", "times the mean")


def _chart(title: str, named: Sequence[tuple[str, Variant]], metric: str, unit: str) -> str:
    rows = [
        Bar(name, {metric: value.median}, value.low, value.high, variant.mode)
        for name, variant in named
        if (value := variant.value(metric)) is not None
    ]
    return _card(title, bars(rows, unit)) if rows else ""


def _parts(variant: Variant, per: str) -> dict[str, float]:
    values = ((part, variant.value(f"{part} us/{per}")) for part in PARTS)
    return {part: value.median for part, value in values if value is not None}


def _card(title: str, chart: str) -> str:
    return f'<figure class="card"><h3>{escape(title)}</h3>{chart}</figure>'


def _table(scenario: Scenario, outcomes: Sequence[Outcome]) -> str:
    shown = columns(scenario, [variant for outcome in outcomes for variant in outcome.variants])
    out = ["<table><tr><th></th>", *(f"<th>{escape(head)}</th>" for _, head in shown), "</tr>"]
    for outcome in outcomes:
        if outcome.case:
            out.append(f'<tr class="case"><td colspan="{len(shown) + 1}">{escape(outcome.case)}</td></tr>')
        for variant in outcome.variants:
            cells = "".join(f"<td>{escape(cell(variant, metric))}</td>" for metric, _ in shown)
            out.append(f"<tr><td>{escape(variant.name)}</td>{cells}</tr>")
    return "".join((*out, "</table>"))
