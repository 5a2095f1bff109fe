"""From runs to numbers that can be compared: medians over rounds, their spread, ratios, and who ties with whom."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from .load.histogram import Histogram
from .measure import GroupResult, Run
from .targets.base import SHARDS

_MANY_STREAMS: Final = 200
"""Fewer tell nothing of the memory that each takes."""

type Metrics = dict[str, float]


def metrics(run: Run, background: Iterable[str] = ()) -> Metrics:
    """Everything that one run shows, by name; times in ms, processor time in µs, memory in MB."""
    seen = _sum(group for name, group in run.groups.items() if name not in set(background))
    everything = _sum(run.groups.values())
    found: Metrics = {
        "events/s": seen.events / run.seconds,
        "requests/s": seen.requests / run.seconds,
        "errors": float(sum(group.errors for group in run.groups.values())),
    }
    for part, used in run.cpu.items():
        if everything.events:
            found[f"{part} us/event"] = used * 1e6 / everything.events
        if everything.requests:
            found[f"{part} us/request"] = used * 1e6 / everything.requests
        found[f"{part} cores"] = used / run.seconds
    for name, times in (("ttft", seen.first), ("gap", seen.gaps), ("latency", seen.latencies)):
        if times.count:
            for label, share in (("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999)):
                found[f"{name} {label}"] = times.quantile(share) * 1e3
    if seen.late.count:
        # As if each event should have come exactly that long after the one before.
        found["late p99"] = seen.late.quantile(0.99) * 1e3
    for part, memory in run.memory.items():
        for kind in ("rss", "pss", "uss"):
            found[f"{part} {kind}"] = getattr(memory, kind) / 1e6
    for name in set(background) & run.groups.keys():
        if (times := run.groups[name].latencies).count:
            found[f"{name} p50"], found[f"{name} p99"] = times.quantile(0.5) * 1e3, times.quantile(0.99) * 1e3
        found[f"{name} requests/s"] = run.groups[name].requests / run.seconds
    if (idle := run.memory_idle.get(SHARDS)) is not None and run.connections >= _MANY_STREAMS:
        found["kB/stream"] = (run.memory[SHARDS].uss - idle.uss) / 1e3 / run.connections
    found["connections"] = float(run.connections)
    if run.start_seconds:
        found["start"] = max(run.start_seconds)
    outputs = sum(run.balance)
    if outputs:
        found["balance"] = max(run.balance) * len(run.balance) / outputs
    if tokens := outputs or everything.events:
        found["tokens/s"] = tokens / run.seconds
        found |= {f"{part} us/token": used * 1e6 / tokens for part, used in run.cpu.items()}
    return found


def _sum(groups: Iterable[GroupResult]) -> GroupResult:
    total = GroupResult()
    for group in groups:
        for name in ("events", "reads", "bytes", "requests", "errors"):
            setattr(total, name, getattr(total, name) + getattr(group, name))
        for name in ("first", "gaps", "late", "latencies"):
            getattr(total, name).add(getattr(group, name))
    return total


@dataclass(frozen=True, slots=True)
class Value:
    """One metric of a variant over all rounds."""

    median: float
    low: float
    high: float

    @property
    def spread(self) -> float:
        """The range as a share of the median."""
        return (self.high - self.low) / self.median if self.median else 0.0

    def overlaps(self, other: Value) -> bool:
        """Whether no difference was seen: the ranges have something in common."""
        return self.low <= other.high and other.low <= self.high


@dataclass(slots=True)
class Variant:
    """One target under one workload, over all rounds."""

    name: str
    mode: str
    shards: int
    runs: list[Metrics] = field(default_factory=list)
    times: dict[str, Histogram] = field(default_factory=dict)
    """ttft, gap and latency of all runs."""

    def add(self, run: Run, background: Iterable[str] = ()) -> None:
        """Take in one round."""
        self.runs.append(metrics(run, background))
        seen = _sum(group for name, group in run.groups.items() if name not in set(background))
        for name, times in (("ttft", seen.first), ("gap", seen.gaps), ("latency", seen.latencies)):
            self.times.setdefault(name, Histogram()).add(times)

    def value(self, metric: str) -> Value | None:
        """Over the rounds; None for what it does not have."""
        values = [run[metric] for run in self.runs if metric in run]
        return Value(statistics.median(values), min(values), max(values)) if values else None

    def names(self) -> list[str]:
        """All metrics that it has."""
        return list(dict.fromkeys(name for run in self.runs for name in run))


def ratio(variant: Variant, base: Variant, metric: str) -> float | None:
    """How many times the base's value; None where one has none."""
    mine, theirs = variant.value(metric), base.value(metric)
    return mine.median / theirs.median if mine and theirs and theirs.median else None


def ties(variants: Sequence[Variant], metric: str) -> list[tuple[str, str]]:
    """Pairs whose ranges overlap: this run shows no difference between them."""
    having = [(variant.name, value) for variant in variants if (value := variant.value(metric)) is not None]
    return [
        (name, other)
        for i, (name, value) in enumerate(having)
        for other, theirs in having[i + 1 :]
        if value.overlaps(theirs)
    ]


def to_json(variant: Variant) -> dict[str, Any]:
    """For results.json."""
    summary = {}
    for name in variant.names():
        value = variant.value(name)
        assert value is not None
        summary[name] = {"median": value.median, "low": value.low, "high": value.high}
    return {
        "name": variant.name,
        "mode": variant.mode,
        "shards": variant.shards,
        "summary": summary,
        "runs": variant.runs,
        "times": {name: times.to_json() for name, times in variant.times.items() if times.count},
    }
