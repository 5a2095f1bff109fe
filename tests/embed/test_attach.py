"""`sglang_subgw.attach`: the engine in an asyncio program of one's own."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import sglang_subgw
from sglang_subgw.config import GatewayConfig, Mode
from sglang_subgw.engine.attach.published import PublishedEngine
from sglang_subgw.errors import ContractError, EngineUnavailable
from sglang_subgw.gateway import ShardGateway
from sglang_subgw.simulated import SimulatedEngine, SimulatedEngineProcess
from support.client import client
from support.modes import needs
from support.stack import echoed, generate_body


@pytest.fixture
def engine(runtime_dir: Path) -> Iterator[SimulatedEngine]:
    with SimulatedEngine(runtime_dir, step_seconds=0.005) as engine:
        yield engine
        assert engine.wait_idle(5)
        assert engine.violations == []
        assert engine.router_alive()


@pytest.fixture
def published(engine: SimulatedEngine) -> Iterator[PublishedEngine]:
    with PublishedEngine(engine) as published:
        yield published


async def generated(owner: int | str, prompt: str, tokens: int) -> str:
    async with sglang_subgw.attach(owner) as engine:
        out: Any = await engine.async_generate(prompt, {"max_new_tokens": tokens})
        return str(out["text"])


def test_it_generates_streams_and_takes_batches(published: PublishedEngine):
    async def run() -> None:
        began = time.perf_counter()
        async with sglang_subgw.attach(published.name) as engine:
            print(f"attached after {time.perf_counter() - began:.3f} s")
            one: Any = await engine.async_generate("<01>", {"max_new_tokens": 9})
            assert one["text"] == echoed("<01>", 9)
            many: Any = await engine.async_generate(["<01>", "<02>"], {"max_new_tokens": 5})
            assert [out["text"] for out in many] == [echoed("<01>", 5), echoed("<02>", 5)]
            stream: Any = await engine.async_generate("<03>", {"max_new_tokens": 7}, stream=True)
            assert [out["text"] async for out in stream][-1] == echoed("<03>", 7)
            assert (await engine.async_flush_cache()).success
            assert len(await engine.async_get_internal_state()) == 1

    asyncio.run(run())


def test_what_runs_when_the_context_is_left_is_aborted(engine: SimulatedEngine, published: PublishedEngine):
    async def run() -> None:
        async with sglang_subgw.attach(published.name) as attached:
            task = asyncio.create_task(attached.async_generate("abc", {"max_new_tokens": 4000}))
            while engine.running() == 0:
                await asyncio.sleep(0.001)
        with pytest.raises(EngineUnavailable):
            await task

    asyncio.run(run())
    assert engine.wait_idle(5)


def test_several_at_once_beside_a_gateway_don_t_meet(engine: SimulatedEngine, published: PublishedEngine, mode: Mode):
    async def run() -> list[str]:
        return await asyncio.gather(*(generated(published.name, f"<{i:02d}>", 20) for i in range(5)))

    with ShardGateway(engine, GatewayConfig(shards=2, mode=mode, port=0, log_level="warning")) as gateway:
        assert asyncio.run(run()) == [echoed(f"<{i:02d}>", 20) for i in range(5)]
        with client(gateway.address) as one:
            assert one.post("/generate", json=generate_body("abc", 3)).json()["text"] == "abc"


def test_from_a_thread_of_one_s_own(published: PublishedEngine):
    texts: list[str] = []
    thread = threading.Thread(target=lambda: texts.append(asyncio.run(generated(published.name, "<01>", 6))))
    thread.start()
    thread.join(20)
    assert texts == [echoed("<01>", 6)]


@needs(Mode.SUBINTERP)
def test_from_an_interpreter_of_one_s_own(published: PublishedEngine, tmp_path: Path):
    from sglang_subgw.modes import images, interpreters

    code = f"""
import sys
sys.path[:] = {sys.path!r}
from sglang_subgw.modes import images
images.install({images.select("auto")!r}, {str(tmp_path)!r})
try:
    import asyncio, sglang_subgw
    async def run():
        async with sglang_subgw.attach({published.name!r}) as engine:
            return (await engine.async_generate("<01>", {{"max_new_tokens": 6}}))["text"]
    assert asyncio.run(run()) == {echoed("<01>", 6)!r}
finally:
    images.release()
"""
    interpreters.preload()
    failures: list[BaseException] = []

    def run() -> None:
        interpreter = interpreters.create()
        try:
            interpreter.exec(code)
        except BaseException as exc:
            failures.append(exc)
        finally:
            interpreter.close()

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(30)
    assert failures == []


def test_from_a_process_that_has_no_sglang(published: PublishedEngine):
    program = f"""
import sys
sys.modules["sglang"] = sys.modules["torch"] = sys.modules["transformers"] = None
import asyncio, sglang_subgw
async def main():
    async with sglang_subgw.attach({published.name!r}) as engine:
        print((await engine.async_generate("<01>", {{"max_new_tokens": 6}}))["text"])
asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, timeout=30)
    assert (done.stdout.strip(), done.stderr) == (echoed("<01>", 6), "")


def test_an_engine_that_ends_ends_what_runs_with_its_reason(runtime_dir: Path):
    async def run(engine: SimulatedEngineProcess) -> None:
        async with sglang_subgw.attach(engine.pid) as attached:
            task = asyncio.create_task(attached.async_generate("abc", {"max_new_tokens": 4000}))
            while attached.worker.active == 0:
                await asyncio.sleep(0.001)
            engine.kill()
            async with asyncio.timeout(5):
                with pytest.raises(EngineUnavailable, match="that owns the engine ended"):
                    await task
                await attached.until_draining()
                with pytest.raises(EngineUnavailable, match="that owns the engine ended"):
                    await attached.async_generate("abc", {"max_new_tokens": 4})

    with SimulatedEngineProcess(runtime_dir, "--step-seconds", "0.01") as engine:
        asyncio.run(run(engine))


def test_an_owner_that_is_to_stop_is_known_before_it_does(published: PublishedEngine):
    async def run() -> None:
        async with sglang_subgw.attach(published.name) as attached:
            waiting = asyncio.create_task(attached.until_draining())
            await attached.async_generate("abc", {"max_new_tokens": 1})
            assert not attached.draining
            assert not waiting.done()
            published.draining()
            async with asyncio.timeout(5):
                await waiting
            out: Any = await attached.async_generate("abc", {"max_new_tokens": 3})
            assert (attached.draining, out["text"]) == (True, "abc")

    asyncio.run(run())


def test_an_owner_without_an_engine_is_refused_with_those_there_are(published: PublishedEngine):
    with pytest.raises(ContractError, match="neither the pid nor the segment") as failure:
        asyncio.run(generated(1, "abc", 1))
    assert published.name in str(failure.value.hint)


def test_an_engine_that_does_not_answer_is_said_to(engine: SimulatedEngine, published: PublishedEngine):
    async def run() -> None:
        async with sglang_subgw.attach(published.name, timeout=0.3):
            pass

    engine.set_faults(router_silent=True)
    with pytest.raises(EngineUnavailable, match=r"did not answer within 0\.3 s"):
        asyncio.run(run())
    engine.set_faults(router_silent=False)


def test_who_only_attaches_loads_no_gateway():
    program = """
import sys, sglang_subgw
sglang_subgw.attach
assert not [name for name in sys.modules if name.startswith(("sglang_subgw.gateway", "sglang_subgw.modes"))]
print("ok")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30)
    assert (done.stdout.strip(), done.stderr) == ("ok", "")
