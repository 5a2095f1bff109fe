"""The engine's router ends, which runs in a thread of the engine's own process: seen by the watcher of real engines."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from sglang_subgw.config import GatewayConfig, Mode
from sglang_subgw.contract import EngineContract
from sglang_subgw.engine.attach.published import PublishedEngine
from sglang_subgw.engine.services.watcher import Watcher
from sglang_subgw.errors import EngineDied
from sglang_subgw.gateway import ShardGateway
from sglang_subgw.simulated import SimulatedEngine
from support.attached import attached
from support.client import raw_request, read_until
from support.stack import generate_body


class Router:
    """What the watcher sees of SGLang's: a thread with a loop, and the two tasks in it."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self._frames: asyncio.Queue[bytes | Exception] = asyncio.Queue()
        self._task = asyncio.run_coroutine_threadsafe(self._forward(), self._loop)
        self._handle_task = asyncio.run_coroutine_threadsafe(asyncio.Event().wait(), self._loop)

    async def _forward(self) -> None:
        while True:
            if isinstance(item := await self._frames.get(), Exception):
                raise item

    def die_of(self, error: Exception) -> None:
        self._loop.call_soon_threadsafe(self._frames.put_nowait, error)

    def lose_a_task(self) -> None:
        self._handle_task.cancel()

    def lose_the_loop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)

    def close(self) -> None:
        if self._thread.is_alive():
            asyncio.run_coroutine_threadsafe(self._end(), self._loop)
        self._thread.join()
        if not self._loop.is_running():
            for task in asyncio.all_tasks(self._loop):
                task.cancel()
            self._loop.run_until_complete(asyncio.sleep(0))
        self._loop.close()

    async def _end(self) -> None:
        self._loop.stop()


class Children:
    """None of them ends."""

    processes: Final[dict[str, Any]] = {}

    def last_words(self) -> tuple[str, str]:
        return "", ""


class Engine:
    """A simulated engine whose router is watched as that of a real one."""

    def __init__(self, simulated: SimulatedEngine, watcher: Watcher) -> None:
        self.contract: EngineContract = simulated.contract
        self.on_death = watcher.on_death


@contextmanager
def watched(runtime_dir: Path) -> Iterator[tuple[Engine, Router, Watcher]]:
    with SimulatedEngine(runtime_dir, step_seconds=0.01) as simulated:
        router = Router()
        watcher = Watcher(Children(), router)
        watcher.start()
        try:
            yield Engine(simulated, watcher), router, watcher
        finally:
            watcher.stop()
            router.close()


END: Final[dict[str, tuple[Callable[[Router], None], str]]] = {
    "an error": (lambda r: r.die_of(ValueError("a frame")), "SGLang's router ended: ValueError('a frame')"),
    "a task": (lambda r: r.lose_a_task(), "SGLang's router ended: one of its tasks is gone"),
    "the thread": (lambda r: r.lose_the_loop(), "SGLang's router ended: its thread is gone"),
}


@pytest.mark.parametrize("how", END)
def test_a_router_that_ends_ends_all_requests_with_503_within_5_s_and_the_gateway_with_its_name(
    runtime_dir: Path, mode: Mode, how: str
):
    end, reason = END[how]
    config = GatewayConfig(mode=mode, shards=2, port=0, log_level="error")
    with watched(runtime_dir) as (engine, router, watcher), ShardGateway(engine, config) as gateway:
        assert watcher.router_alive()
        plain = raw_request(gateway.address, "/generate", generate_body("abc", 4000, ignore_eos=True))
        streams = [
            raw_request(gateway.address, "/generate", generate_body("abc", 4000, stream=True, ignore_eos=True))
            for _ in range(4)
        ]
        for stream in streams:
            read_until(stream, b"\n\n")
        ended_at = time.monotonic()
        end(router)
        assert b" 503 " in read_until(plain, b"\r\n")
        for stream in streams:
            rest = read_until(stream, b"[DONE]")
            assert b'"code":503' in rest
            assert reason.encode() in rest
        assert time.monotonic() - ended_at < 5
        for sock in (plain, *streams):
            sock.close()
        assert gateway.wait(5)
        assert not watcher.router_alive()
        with pytest.raises(EngineDied, match="SGLang's router ended"):
            gateway.raise_failure()


def test_an_attached_gateway_ends_with_the_router_s_name_in_its_last_line(runtime_dir: Path, mode: Mode):
    with watched(runtime_dir) as (engine, router, _), PublishedEngine(engine) as published:
        with attached(published.name, mode=mode) as gateway:
            stream = raw_request(gateway.address, "/generate", generate_body("abc", 4000, stream=True, ignore_eos=True))
            read_until(stream, b"\n\n")
            router.lose_the_loop()
            assert b'"code":503' in read_until(stream, b"[DONE]")
            stream.close()
            assert gateway.wait(5) == 1
        assert gateway.log.splitlines()[-1].startswith("sglang_subgw: SGLang's router ended: ")
