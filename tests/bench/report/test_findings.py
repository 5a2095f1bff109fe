"""Findings: ratios, ties and cases in sentences."""

from __future__ import annotations

import pytest

from sglang_subgw.bench.report.findings import as_ratio, findings
from sglang_subgw.bench.results import Variant
from sglang_subgw.bench.runner import Outcome
from sglang_subgw.bench.scenarios import scenario


def _variant(name: str, mode: str, values: list[float], shards: int = 1, metric: str = "shards us/event") -> Variant:
    return Variant(name, mode, shards, runs=[{metric: value} for value in values])


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
