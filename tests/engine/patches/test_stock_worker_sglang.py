"""SGLang's own worker among the shards, with SGLang's own lock: nobody hangs, and it keeps what all have agreed on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sglang_subgw.coordination.client import Coordination
from sglang_subgw.coordination.gate import Gate
from sglang_subgw.coordination.quiesce import quiet
from sglang_subgw.coordination.server import Coordinator
from sglang_subgw.engine.engine_loop import EngineLoop
from sglang_subgw.engine.patches.stock_worker import StockWorker
from sglang_subgw.errors import RequestRejected

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(120)]


class Manager:
    """A tokenizer manager's locks and changes, with no engine behind them."""

    def __init__(self, lock: Any) -> None:
        self.model_update_lock = lock
        self.is_pause = False
        self.rid_to_state: dict[str, Any] = {}
        self.model_path = self.served_model_name = "m"
        self.done: list[str] = []
        self.aborts = 0

    def config_value(self, name: str) -> Any:
        return None

    def record_config_updates(self, source: str, **fields: Any) -> None:
        pass

    def abort_request(self, *, abort_all: bool) -> None:
        self.aborts += 1

    async def get_internal_state(self) -> None:
        self.done.append("state")

    async def update_weights_from_disk(self, obj: Any) -> None:
        if self.is_pause:
            self.done.append("update")
            return
        async with self.model_update_lock.writer_lock:
            self.done.append("update")

    async def update_weight_version(self, obj: Any) -> None:
        self.done.append("version")

    async def release_memory_occupation(self, obj: Any) -> None:
        assert self.model_update_lock._readers == 0
        self.done.append("release")

    async def resume_memory_occupation(self, obj: Any) -> None:
        self.done.append("resume")

    async def pause_generation(self, obj: Any) -> None:
        self.is_pause = True

    async def continue_generation(self, obj: Any) -> None:
        self.is_pause = False

    async def request(self, until: asyncio.Event) -> None:
        """As `generate_request` does, but for the pause."""
        async with self.model_update_lock.reader_lock:
            rid = f"rid {id(until)}"
            self.rid_to_state[rid] = None
            await until.wait()
            del self.rid_to_state[rid]


class Member:
    """A shard, as far as the others see it."""

    def __init__(self, path: str, name: str) -> None:
        self.gate = Gate()
        self.coordination = Coordination(path, name)
        self.coordination.on_state = lambda state: self.gate.set(
            paused=bool(state.get("paused")), held=bool(state.get("held"))
        )
        self.coordination.handlers |= {"idle": lambda body: None, "active": lambda body: 0}

    def alone(self) -> AbstractAsyncContextManager[None]:
        return quiet(self.coordination, self.gate)

    async def update(self) -> None:
        async with self.alone():
            pass

    async def settle(self) -> None:
        """Until every worker has done what it was told before, and what follows from it."""
        for _ in range(2):
            await self.coordination.tell("apply")

    async def meets(self, manager: Manager) -> tuple[asyncio.Task[None], asyncio.Event]:
        """A request to SGLang's own worker, and what ends it."""
        end = asyncio.Event()
        task = asyncio.create_task(manager.request(end))
        await self.settle()
        return task, end


def run(directory: Path, scenario: Callable[[Manager, Member], Coroutine[Any, Any, None]]) -> Manager:
    rwlock = pytest.importorskip("sglang.srt.utils.aio_rwlock")

    async def whole() -> Manager:
        path = str(directory / "c")
        manager = Manager(rwlock.RWLock())
        worker = StockWorker(manager, path, cast("EngineLoop", SimpleNamespace(loop=asyncio.get_running_loop())))
        worker.start()
        await asyncio.wrap_future(worker._joining)
        shard = Member(path, "shard")
        await shard.coordination.start()
        async with asyncio.timeout(20):
            await scenario(manager, shard)
        await shard.coordination.close()
        worker.close()
        # Whatever was put around its methods is gone.
        assert not [name for name in vars(manager) if callable(vars(manager)[name])]
        while "acquire_reader" in vars(manager.model_update_lock):
            await asyncio.sleep(0.001)
        return manager

    coordinator = Coordinator(directory / "c", {})
    coordinator.start()
    try:
        return asyncio.run(whole())
    finally:
        coordinator.close()


def test_updates_that_were_given_up_keep_nobody_waiting(runtime_dir: Path) -> None:
    async def scenario(manager: Manager, shard: Member) -> None:
        request, end = await shard.meets(manager)
        assert manager.rid_to_state
        for _ in range(2):
            given_up = asyncio.create_task(shard.update())
            await shard.settle()
            given_up.cancel()
            await asyncio.gather(given_up, return_exceptions=True)
        await shard.settle()
        # It is SGLang's lock that such an update would have kept others from.
        second, second_end = await shard.meets(manager)
        assert manager.model_update_lock._readers == 2
        second_end.set()
        await second
        waiting = asyncio.create_task(shard.update())
        own = asyncio.create_task(manager.update_weights_from_disk(SimpleNamespace()))
        await shard.settle()
        assert not waiting.done()
        assert not own.done()
        end.set()
        await request
        await waiting
        await own
        assert manager.done == ["update"]

    run(runtime_dir, scenario)


def test_its_requests_wait_for_a_shard_s_change_and_for_released_memory(runtime_dir: Path) -> None:
    async def scenario(manager: Manager, shard: Member) -> None:
        async with shard.alone():
            request, end = await shard.meets(manager)
            assert not manager.rid_to_state
            await shard.coordination.tell("apply", state={"released": ["kv_cache"]})
        await shard.settle()
        assert not manager.rid_to_state
        # The change that SGLang's own worker makes meanwhile does not wait for what waits.
        await manager.update_weights_from_disk(SimpleNamespace())
        assert not manager.rid_to_state
        await manager.resume_memory_occupation(SimpleNamespace(tags=["kv_cache"]))
        await shard.settle()
        assert manager.rid_to_state
        end.set()
        await request
        assert manager.done == ["update", "resume"]

    run(runtime_dir, scenario)


def test_memory_that_is_released_through_it_is_known_to_shards(runtime_dir: Path) -> None:
    async def scenario(manager: Manager, shard: Member) -> None:
        request, end = await shard.meets(manager)
        releasing = asyncio.create_task(manager.release_memory_occupation(SimpleNamespace(tags=None)))
        await shard.settle()
        assert not releasing.done()
        end.set()
        await request
        await releasing
        assert shard.coordination.state["released"] == ["cuda_graph", "kv_cache", "weights"]
        await manager.resume_memory_occupation(SimpleNamespace(tags=["weights"]))
        assert shard.coordination.state["released"] == ["cuda_graph", "kv_cache"]
        await manager.resume_memory_occupation(SimpleNamespace(tags=[]))
        assert shard.coordination.state["released"] == []

    assert run(runtime_dir, scenario).done == ["release", "resume", "resume"]


def test_memory_is_not_released_under_requests_that_are_paused_in_place(runtime_dir: Path) -> None:
    async def scenario(manager: Manager, shard: Member) -> None:
        request, end = await shard.meets(manager)
        await manager.pause_generation(SimpleNamespace(mode="in_place"))
        with pytest.raises(RequestRejected, match="1 requests are paused in the engine"):
            await manager.release_memory_occupation(SimpleNamespace(tags=None))
        assert shard.coordination.state["released"] == []
        end.set()
        await request

    assert run(runtime_dir, scenario).done == ["state"]


def test_whether_requests_were_put_back_is_kept(runtime_dir: Path) -> None:
    async def scenario(manager: Manager, shard: Member) -> None:
        await manager.pause_generation(SimpleNamespace(mode="retract"))
        assert shard.coordination.state["retracted"]
        await manager.pause_generation(SimpleNamespace(mode="in_place"))
        assert shard.coordination.state["retracted"]
        await manager.continue_generation(SimpleNamespace())
        assert not shard.coordination.state["retracted"]
        assert not shard.gate.paused

    run(runtime_dir, scenario)


def test_an_update_that_aborts_aborts_before_it_waits(runtime_dir: Path) -> None:
    async def scenario(manager: Manager, shard: Member) -> None:
        request, end = await shard.meets(manager)
        updating = asyncio.create_task(manager.update_weights_from_disk(SimpleNamespace(abort_all_requests=True)))
        await shard.settle()
        assert manager.aborts == 1
        end.set()
        await request
        await updating

    run(runtime_dir, scenario)


def test_weights_that_get_a_name_end_no_request_and_wait_for_none(runtime_dir: Path) -> None:
    """Although SGLang's request says `abort_all_requests` unless told otherwise: its HTTP route alone heeds that."""

    async def scenario(manager: Manager, shard: Member) -> None:
        request, end = await shard.meets(manager)
        await manager.update_weight_version(SimpleNamespace(new_version="v", abort_all_requests=True))
        assert manager.done == ["version"]
        assert manager.aborts == 0
        end.set()
        await request

    run(runtime_dir, scenario)
