"""What is made of measured numbers: histograms, medians, ratios, ties, sentences."""

from __future__ import annotations

import json
import random
import statistics

import pytest

from sglang_subgw.bench.load.histogram import Histogram
from sglang_subgw.bench.measure import GroupResult, Run
from sglang_subgw.bench.report.findings import as_ratio, findings
from sglang_subgw.bench.results import Variant, metrics, ratio, ties
from sglang_subgw.bench.runner import Outcome
from sglang_subgw.bench.scenarios import SCENARIOS, scenario
from sglang_subgw.bench.system.memory import ProcessMemory
from sglang_subgw.errors import ConfigError


def test_quantiles_are_exact_to_two_percent() -> None:
    times = [random.Random(7).lognormvariate(-4, 1) for _ in range(5000)]
    histogram = Histogram.of(times)
    for share in (0.5, 0.9, 0.99):
        exact = statistics.quantiles(times, n=1000)[round(share * 1000) - 1]
        assert histogram.quantile(share) == pytest.approx(exact, rel=0.03)
    assert histogram.count == 5000


def test_a_histogram_survives_json_and_adds_up() -> None:
    first, second = Histogram.of([0.001, 0.002]), Histogram.of([0.002])
    total = Histogram.from_json(json.loads(json.dumps(first.to_json())))
    total.add(second)
    assert total.buckets == Histogram.of([0.001, 0.002, 0.002]).buckets


def test_an_empty_histogram_has_no_times() -> None:
    assert Histogram().quantile(0.99) == 0.0


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


def test_findings_name_ratios_ties_and_nothing_of_another_number_of_shards() -> None:
    variants = [
        _variant("subinterp-1", "subinterp", [8, 9, 10]),
        _variant("process-1", "process", [9.5, 11, 12]),
        _variant("sglang-1", "sglang", [80, 90, 100]),
        _variant("sglang-2", "sglang", [80, 90, 100], shards=2),
    ]
    said = findings(scenario("chat-64"), [Outcome(scenario("chat-64"), "", variants)])
    assert "subinterp-1 uses 1/10.0 of sglang-1's shard CPU per event" in said
    assert "subinterp-1 and process-1 tie in shards us/event: their ranges overlap" in said
    assert not any("subinterp-1 uses" in text and "sglang-2" in text for text in said)


def test_findings_compare_cases_with_the_base_case() -> None:
    one = scenario("long-prompt")
    cases = {"alone": [20.0, 21.0], "4 MB": [50.0, 60.0], "32 x 100k": [20.5, 22.0]}
    outcomes = [
        Outcome(one, case, [_variant("subinterp-1", "subinterp", values, metric="gap p99")])
        for case, values in cases.items()
    ]
    said = findings(one, outcomes)
    assert "4 MB, subinterp-1: gap p99 is 2.68 × that of alone" in said
    assert "32 x 100k, subinterp-1: gap p99 is 1.04 × that of alone, unchanged within the spread" in said


def test_throughput_is_compared_with_one_shard_of_the_same_mode() -> None:
    variants = [
        _variant("process-1", "process", [100], metric="tokens/s"),
        _variant("process-2", "process", [190], shards=2, metric="tokens/s"),
    ]
    said = findings(scenario("saturate"), [Outcome(scenario("saturate"), "", variants)])
    assert "process-2: 1.90 times the tokens/s of process-1" in said
    assert any("one round shows no spread" in text for text in said)


@pytest.mark.parametrize(("times", "text"), [(0.1, "1/10.0"), (0.75, "0.75 ×"), (2.2, "2.20 ×")])
def test_small_ratios_are_fractions(times: float, text: str) -> None:
    assert as_ratio(times) == text


def test_every_scenario_has_its_base_among_its_cases() -> None:
    for one in SCENARIOS.values():
        assert one.cases
        assert not one.base or one.base in one.cases
        assert set(one.ungrouped) <= set(one.cases)


def test_a_scenario_can_be_changed_without_touching_its_background() -> None:
    changed = scenario("slow-readers").changed(connections=4, seconds=0.5)
    case = changed.cases["slow ones"]
    assert [group.connections for group in case.groups] == [4, 1000]
    assert case.seconds == 0.5


def test_an_unknown_scenario_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(ConfigError, match="chat-64"):
        scenario("chat-65")
