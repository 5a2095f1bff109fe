"""Health checks: each ends, whichever way its answer comes, and without one."""

from __future__ import annotations

import asyncio
from pathlib import Path

from sglang_subgw.simulated import SimulatedEngine
from sglang_subgw.worker.health_checks import HealthChecks
from support.shard_values import Shard, with_two


def test_health_checks_end_whichever_way_their_answers_come(runtime_dir: Path) -> None:
    """What was dropped is told on a shorter way than what was answered before it."""

    async def scenario(simulated: SimulatedEngine, first: Shard, second: Shard) -> None:
        worker, rid = second.worker, f"HEALTH_CHECK_{second.worker._outbound._rids.prefix}"
        for _ in range(2):
            worker._health_checks.begin()
        worker._handlers["HealthCheckOutput"]({})
        assert worker.occupying == 1
        worker._on_outputs({"rids": ["HEALTH_CHECK_of another's"]})
        assert worker.occupying == 1
        worker._on_outputs({"rids": [f"{rid}000000000001"]})
        assert worker.occupying == 0
        assert (await first.engine.async_begin_weight_update())[0]
        assert (await first.engine.async_end_weight_update())[0]

    with_two(runtime_dir, scenario)


def test_health_checks_without_an_answer_keep_nobody_waiting_for_ever() -> None:
    async def scenario() -> None:
        checks = HealthChecks("x")
        checks.begin()
        await checks.ended(0.01)
        assert checks.open == 0

    asyncio.run(scenario())
