"""Histograms of times: quantiles, JSON, sums."""

from __future__ import annotations

import json
import random
import statistics

import pytest

from sglang_subgw.bench.load.histogram import Histogram


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
