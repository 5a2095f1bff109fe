"""Results written down."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..results import to_json
from ..runner import Outcome
from ..scenarios import Scenario
from .findings import findings
from .page import render


def write_report(
    directory: Path,
    machine: Mapping[str, Any],
    start_seconds: Mapping[str, float],
    results: Sequence[tuple[Scenario, Sequence[Outcome]]],
) -> Path:
    """results.json and index.html; returns the page's path."""
    directory.mkdir(parents=True, exist_ok=True)
    data = {
        "machine": dict(machine),
        "start_seconds": dict(start_seconds),
        "scenarios": [
            {
                "name": scenario.name,
                "about": scenario.about,
                "findings": findings(scenario, outcomes),
                "cases": [
                    {"name": outcome.case, "variants": [to_json(variant) for variant in outcome.variants]}
                    for outcome in outcomes
                ],
            }
            for scenario, outcomes in results
        ],
    }
    (directory / "results.json").write_text(json.dumps(data, indent=1) + "\n", "utf-8")
    page = directory / "index.html"
    page.write_text(render(machine, start_seconds, results), "utf-8")
    return page
