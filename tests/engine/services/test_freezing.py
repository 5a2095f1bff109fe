"""What an engine has at the end of its start is left out of garbage collection."""

from __future__ import annotations

from pathlib import Path

import pytest

from sglang_subgw.engine.services.freezing import freeze_engine
from sglang_subgw.simulated import SimulatedEngine


@pytest.mark.parametrize("codec", ["pickle", "msgpack"])
@pytest.mark.parametrize("threshold", [None, [700, 10, 10]])
def test_the_schedulers_hear_of_it_with_the_thresholds_that_were_asked_for(
    runtime_dir: Path, codec: str, threshold: list[int] | None
) -> None:
    if codec == "msgpack":
        pytest.importorskip("msgspec")
    with SimulatedEngine(runtime_dir, codec=codec, server_args={"gc_threshold": threshold}) as engine:
        freeze_engine(engine.contract)
        assert engine.wait_for(lambda: engine.control.housekeeping.gc_frozen == [threshold])
        assert engine.violations == []
