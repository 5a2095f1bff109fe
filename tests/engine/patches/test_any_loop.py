"""An engine's coroutine methods, awaited on loops that are not its tokenizer manager's."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from sglang_subgw.engine.engine_loop import EngineLoop
from sglang_subgw.engine.patches.any_loop import open_to_any_loop


class Manager:
    """What EngineLoop knows of a tokenizer manager."""

    event_loop: asyncio.AbstractEventLoop | None = None

    async def handle_loop(self) -> None:
        await asyncio.Event().wait()


class Engine:
    """As sglang.Engine: coroutine methods, one of which may return a generator."""

    def __init__(self) -> None:
        self.loop: Any = asyncio.new_event_loop()
        self.tokenizer_manager = Manager()
        self.left = threading.Event()

    async def async_generate(self, prompt: str, stream: bool = False) -> Any:
        """As SGLang's."""
        return self._stream(prompt) if stream else (prompt, asyncio.get_running_loop(), threading.current_thread())

    async def async_fail(self) -> None:
        raise ValueError("as it is")

    async def async_wait(self) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            self.left.set()

    async def _stream(self, prompt: str) -> AsyncIterator[Any]:
        for letter in prompt:
            yield letter, asyncio.get_running_loop()

    def generate(self, prompt: str) -> Any:
        return self.loop.run_until_complete(self.async_generate(prompt))


@pytest.fixture
def engine() -> Iterator[Engine]:
    engine = Engine()
    stock = engine.loop
    loop = EngineLoop(engine)
    loop.start()
    undo = open_to_any_loop(engine, loop)
    yield engine
    undo()
    loop.close()
    assert not {name for name in vars(engine) if name.startswith("async_")}
    stock.close()


def real(engine: Engine) -> Any:
    return engine.tokenizer_manager.event_loop


def test_they_run_on_the_engine_s_own_loop_wherever_they_are_awaited(engine: Engine):
    async def elsewhere() -> None:
        prompt, loop, thread = await engine.async_generate("abc")
        assert (prompt, loop) == ("abc", real(engine))
        assert thread is not threading.current_thread()
        assert [item async for item in await engine.async_generate("abc", stream=True)] == [
            (letter, real(engine)) for letter in "abc"
        ]
        with pytest.raises(ValueError, match="as it is"):
            await engine.async_fail()

    asyncio.run(elsewhere())
    asyncio.run(elsewhere())


def test_on_that_loop_itself_they_are_what_they_were(engine: Engine):
    assert engine.generate("abc")[1] is real(engine)


def test_they_are_cancelled_with_their_callers(engine: Engine):
    async def elsewhere() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await engine.async_wait()

    asyncio.run(elsewhere())
    assert engine.left.wait(10)


def test_their_signatures_stay(engine: Engine):
    assert engine.async_generate.__doc__ == "As SGLang's."
    assert inspect.iscoroutinefunction(engine.async_generate)
    assert list(inspect.signature(engine.async_generate).parameters) == ["prompt", "stream"]
