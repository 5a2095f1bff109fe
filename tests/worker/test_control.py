"""Control messages: one question of a kind at a time, and no answer counted for the wrong one."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from sglang_subgw.errors import EngineUnavailable
from sglang_subgw.worker.control import ControlClient


class Engine:
    def __init__(self, ranks: int = 1) -> None:
        self.sent: list[str] = []
        self.control = ControlClient(lambda kind, fields: self.sent.append(kind), ranks)

    def ask(self, timeout: float = 5.0, kind: str = "Q") -> asyncio.Task[list[dict[str, Any]]]:
        return asyncio.create_task(self.control.ask(kind, {}, f"{kind}Answer", timeout))

    def answer(self, value: int, kind: str = "Q") -> bool:
        return self.control.on_answer(f"{kind}Answer", {"value": value})


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_every_rank_answers() -> None:
    async def run() -> None:
        engine = Engine(ranks=2)
        task = engine.ask()
        await settle()
        assert engine.answer(1)
        await settle()
        assert not task.done()
        assert engine.answer(2)
        assert await task == [{"value": 1}, {"value": 2}]
        assert not engine.answer(3)

    asyncio.run(run())


def test_questions_of_one_kind_wait_for_each_other() -> None:
    async def run() -> None:
        engine = Engine()
        first, second, other = engine.ask(), engine.ask(), engine.ask(kind="R")
        await settle()
        assert engine.sent == ["Q", "R"]
        engine.answer(1)
        assert await first == [{"value": 1}]
        await settle()
        assert engine.sent == ["Q", "R", "Q"]
        engine.answer(2)
        engine.answer(3, "R")
        assert await second == [{"value": 2}]
        assert await other == [{"value": 3}]

    asyncio.run(run())


def test_the_wait_for_other_questions_counts_too() -> None:
    async def run() -> None:
        engine = Engine()
        first = engine.ask()
        await settle()
        with pytest.raises(EngineUnavailable, match=r"did not answer Q within 0\.001 s"):
            await engine.ask(0.001)
        assert engine.sent == ["Q"]
        engine.answer(1)
        assert await first == [{"value": 1}]
        third = engine.ask()
        await settle()
        engine.answer(3)
        assert await third == [{"value": 3}]

    asyncio.run(run())


@pytest.mark.parametrize("how", ["timeout", "cancel"])
def test_a_late_answer_does_not_count_for_the_next_question(how: str) -> None:
    async def run() -> None:
        engine = Engine()
        task = engine.ask(0.001 if how == "timeout" else 5.0)
        await settle()
        if how == "cancel":
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        else:
            with pytest.raises(EngineUnavailable, match=r"did not answer Q within 0\.001 s"):
                await task
        task = engine.ask()
        await settle()
        assert engine.answer(1)
        await settle()
        assert not task.done()
        assert engine.answer(2)
        assert await task == [{"value": 2}]

    asyncio.run(run())


def test_a_dead_engine_answers_nothing() -> None:
    async def run() -> None:
        engine = Engine()
        task = engine.ask()
        await settle()
        engine.control.fail(EngineUnavailable("gone"))
        with pytest.raises(EngineUnavailable, match="gone"):
            await task
        with pytest.raises(EngineUnavailable, match="gone"):
            await engine.ask()

    asyncio.run(run())
