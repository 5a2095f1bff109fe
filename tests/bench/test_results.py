"""What is made of measured numbers: medians, ratios, ties."""

from __future__ import annotations

import pytest

from sglang_subgw.bench.load.histogram import Histogram
from sglang_subgw.bench.measure import GroupResult, Run
from sglang_subgw.bench.results import Variant, metrics, ratio, ties
from sglang_subgw.bench.system.memory import ProcessMemory


def _run(**changes: object) -> Run:
    group = GroupResult(events=1000, requests=10, first=Histogram.of([0.01]), gaps=Histogram.of([0.02] * 9))
    fields = {
        "target": "subinterp-1",
        "seconds": 2.0,
        "groups": {"streams": group},
        "cpu": {"shards": 0.01, "load": 0.02},
        "memory": {"shards": ProcessMemory(3_000_000, 2_000_000, 1_000_000)},
        "balance": [600, 200],
        "start_seconds": (0.2, 0.3),
        "memory_idle": {"shards": ProcessMemory(0, 0, 500_000)},
        "connections": 500,
    }
    return Run(**(fields | changes))  # type: ignore[arg-type]


def test_metrics_are_per_event_per_request_and_per_second() -> None:
    found = metrics(_run())
    assert found["events/s"] == 500
    assert found["requests/s"] == 5
    assert found["shards us/event"] == pytest.approx(10)
    assert found["load us/request"] == pytest.approx(2000)
    assert found["shards us/token"] == pytest.approx(12.5)
    assert found["balance"] == 1.5
    assert found["kB/stream"] == 1
    assert found["start"] == 0.3
    assert found["gap p50"] == pytest.approx(20, rel=0.03)


def test_background_load_counts_as_work_but_not_as_what_was_measured() -> None:
    slow = GroupResult(events=1000, gaps=Histogram.of([5.0] * 50), latencies=Histogram.of([3.0]))
    run = _run(groups={**_run().groups, "slow": slow})
    found = metrics(run, ["slow"])
    assert found["events/s"] == 500
    assert found["shards us/event"] == pytest.approx(5)
    assert found["gap p99"] < 30
    assert found["slow p99"] == pytest.approx(3000, rel=0.03)


def _variant(name: str, mode: str, values: list[float], shards: int = 1, metric: str = "shards us/event") -> Variant:
    return Variant(name, mode, shards, runs=[{metric: value} for value in values])


def test_ranges_that_overlap_tie_and_others_do_not() -> None:
    variants = [
        _variant("subinterp-1", "subinterp", [8, 9, 10]),
        _variant("process-1", "process", [9.5, 11, 12]),
        _variant("sglang-1", "sglang", [80, 90, 100]),
    ]
    assert ties(variants, "shards us/event") == [("subinterp-1", "process-1")]
    assert ratio(variants[0], variants[2], "shards us/event") == 0.1
