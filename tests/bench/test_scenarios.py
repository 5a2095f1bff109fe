"""Scenarios: their cases, changes of them, and names that there are not."""

from __future__ import annotations

import pytest

from sglang_subgw.bench.scenarios import SCENARIOS, scenario
from sglang_subgw.errors import ConfigError


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
