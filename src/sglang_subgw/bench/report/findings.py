"""What the numbers of a scenario say, in sentences: ratios, changes against the base case, scaling, ties, errors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..results import Variant, ratio, ties
from ..runner import Outcome
from ..scenarios import Scenario
from ..targets.base import DETOKENIZER, MAIN, SHARDS

_OTHERS = ("sglang", "sglang-rust", "url", "floor")
"""Kinds of variants that ours are compared with."""
_SGLANG = ("sglang", "sglang-rust")


def findings(scenario: Scenario, outcomes: Sequence[Outcome]) -> list[str]:
    """One sentence each."""
    found: list[str] = []
    for outcome in outcomes:
        where = f"{outcome.case}: " if outcome.case else ""
        found += [where + text for text in _of_case(scenario, outcome)]
    if outcomes and outcomes[0].variants and len(outcomes[0].variants[0].runs) < 2:
        found.append("one round shows no spread: nothing is said about ties")
    if scenario.base:
        base = next(outcome for outcome in outcomes if outcome.case == scenario.base)
        for outcome in outcomes:
            if outcome is not base:
                found += _against_base(scenario, outcome, base)
    return found


def _of_case(scenario: Scenario, outcome: Outcome) -> Iterator[str]:
    variants, per = outcome.variants, scenario.per
    metric = f"{SHARDS} us/{per}"
    ours = [variant for variant in variants if variant.mode not in _OTHERS]
    for variant in ours:
        for base in variants:
            if base in ours or (base.mode in _SGLANG and base.shards != variant.shards):
                continue
            if (times := ratio(variant, base, metric)) is not None:
                yield f"{variant.name} uses {as_ratio(times)} of {base.name}'s shard CPU per {per}"
    if per == "request":
        yield from _together(ours, variants, MAIN, per)
    else:
        yield from _together(ours, variants, DETOKENIZER, per)
    if scenario.scaling:
        yield from _scaling(variants)
    for variant in variants:
        if (errors := variant.value("errors")) is not None and errors.high:
            yield f"{variant.name} had errors: {errors.high:.0f} in a round"
    if variants and len(variants[0].runs) > 1:
        about = "tokens/s" if scenario.scaling and variants[0].value("tokens/s") else metric
        for shards in sorted({variant.shards for variant in ours}):
            alike = [variant for variant in ours if variant.shards == shards]
            for name, other in ties(alike, about):
                yield f"{name} and {other} tie in {about}: their ranges overlap"


def _together(ours: Sequence[Variant], variants: Sequence[Variant], other: str, per: str) -> Iterator[str]:
    """With the part whose work one may shift to another: the router's in main, or the detokenizer's."""
    for variant in ours:
        for base in variants:
            if base.mode in _SGLANG and base.shards == variant.shards:
                mine, theirs = (_sum(one, (SHARDS, other), f"us/{per}") for one in (variant, base))
                if theirs:
                    yield f"{variant.name} with its {other}: {as_ratio(mine / theirs)} of {base.name} with its own"


def _scaling(variants: Sequence[Variant]) -> Iterator[str]:
    for variant in variants:
        first = next((one for one in variants if one.mode == variant.mode and one.shards == 1), None)
        if first is None or variant is first or variant.mode in ("url", "floor"):
            continue
        metric = "tokens/s" if variant.value("tokens/s") else "events/s"
        mine, theirs = variant.value(metric), first.value(metric)
        if mine is not None and theirs is not None and theirs.median:
            unclear = ", within the spread" if len(variant.runs) > 1 and mine.overlaps(theirs) else ""
            yield f"{variant.name}: {mine.median / theirs.median:.2f} times the {metric} of {first.name}{unclear}"


def _against_base(scenario: Scenario, outcome: Outcome, base: Outcome) -> Iterator[str]:
    metrics = scenario.compared or (f"{SHARDS} us/{scenario.per}",)
    for variant in outcome.variants:
        before = next((one for one in base.variants if one.name == variant.name), None)
        if before is None:
            continue
        for metric in metrics:
            mine, theirs = variant.value(metric), before.value(metric)
            if mine is not None and theirs is not None and theirs.median:
                same = ", unchanged within the spread" if len(variant.runs) > 1 and mine.overlaps(theirs) else ""
                times = mine.median / theirs.median
                yield f"{outcome.case}, {variant.name}: {metric} is {times:.2f} × that of {base.case}{same}"


def best_ratio(scenario: Scenario, outcome: Outcome, kind: str) -> tuple[str, float] | None:
    """Our variant that uses the smallest share of what one of that kind does, and the share."""
    metric = f"{SHARDS} us/{scenario.per}"
    found = [
        (times, variant.name)
        for variant in outcome.variants
        for base in outcome.variants
        if variant.mode not in _OTHERS
        and base.mode == kind
        and (kind not in _SGLANG or base.shards == variant.shards)
        and (times := ratio(variant, base, metric)) is not None
    ]
    return (best[1], best[0]) if (best := min(found, default=None)) else None


def _sum(variant: Variant, parts: Sequence[str], unit: str) -> float:
    values = (variant.value(f"{part} {unit}") for part in parts)
    return sum(value.median for value in values if value is not None)


def as_ratio(times: float) -> str:
    """Small ones as a fraction of 1."""
    return f"1/{1 / times:.1f}" if 0 < times < 0.5 else f"{times:.2f} ×"
