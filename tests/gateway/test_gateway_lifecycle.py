"""A gateway's life over the simulated engine: starts that fail, shards that die, engines that die, stops."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from sglang_subgw.config import SHARD_MODES, GatewayConfig, Mode
from sglang_subgw.contract import ShardState
from sglang_subgw.errors import EngineDied, ModeUnavailable, ShardFailed, ShardStartError
from sglang_subgw.gateway import ShardGateway
from sglang_subgw.simulated import SimulatedEngine
from sglang_subgw.tokenization.tokenizer import INLINE_CHARACTERS
from support.modes import needs
from support.stack import running_stack

MODES = SHARD_MODES


@pytest.fixture
def engine(tmp_path_factory):
    with SimulatedEngine(tmp_path_factory.mktemp("sim"), step_seconds=0.01) as engine:
        yield engine


def config(**fields) -> GatewayConfig:
    return GatewayConfig(**{"shards": 2, "port": 0, "log_level": "warning", **fields})


def until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    """Wait for what another thread or process does."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.005)


def generate(gateway: ShardGateway, tokens: int = 4, **fields) -> httpx.Response:
    body = {"text": "hello world", "sampling_params": {"max_new_tokens": tokens, "ignore_eos": True}, **fields}
    return httpx.post(f"{gateway.urls[0]}/generate", json=body, timeout=30)


class Stream(threading.Thread):
    """A long stream in a thread: its events, and its shard."""

    def __init__(self, gateway: ShardGateway, tokens: int) -> None:
        super().__init__()
        self.gateway, self.tokens = gateway, tokens
        self.events: list[str] = []
        self.shard = -1
        self.error: Exception | None = None
        self.running = threading.Event()
        self.start()
        assert self.running.wait(10)

    def run(self) -> None:
        params = {"max_new_tokens": self.tokens, "ignore_eos": True}
        body = {"text": "hello world", "stream": True, "sampling_params": params}
        try:
            with httpx.stream("POST", f"{self.gateway.urls[0]}/generate", json=body, timeout=30) as response:
                self.shard = int(response.headers["x-sglang-subgw-shard"])
                for line in response.iter_lines():
                    if line:
                        self.events.append(line)
                        self.running.set()
        except httpx.HTTPError as exc:
            self.error = exc
        finally:
            self.running.set()


@pytest.mark.parametrize("mode", MODES)
def test_it_serves_is_drained_and_leaves_the_engine_running(engine, mode):
    with ShardGateway(engine, config(mode=mode)) as gateway:
        assert [shard["state"] for shard in gateway.shards] == ["ready", "ready"]
        assert generate(gateway).status_code == 200
        gateway.drain()
        assert [shard["state"] for shard in gateway.shards] == ["stopped", "stopped"]
        with pytest.raises(httpx.ConnectError):
            generate(gateway)
    assert engine.router_alive()
    assert engine.violations == []


@pytest.mark.parametrize("mode", MODES)
def test_twice_in_one_process_one_after_the_other_and_from_a_thread(engine, mode):
    statuses = []

    def run() -> None:
        with ShardGateway(engine, config(mode=mode, shards=1)) as gateway:
            statuses.append(generate(gateway).status_code)

    run()
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert statuses == [200, 200]


def test_from_within_a_running_loop(engine):
    async def main() -> int:
        with ShardGateway(engine, config(shards=1)) as gateway:
            async with httpx.AsyncClient() as client:
                answer = await client.post(f"{gateway.urls[0]}/generate", json={"text": "hello"})
            return answer.status_code

    assert asyncio.run(main()) == 200


def test_public_bugs_18_library_use_installs_no_signal_handlers(engine):
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGCHLD)]
    with ShardGateway(engine, config(shards=1)):
        now = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGCHLD)]
    assert now == before


@needs(Mode.SUBINTERP)
def test_a_subinterpreter_serves_without_any_extension_image(runtime_dir):
    with running_stack(runtime_dir, Mode.SUBINTERP, config={"images": "off"}) as stack:
        assert stack.generate("abcdef", 5)["text"]
        stack.check()


@needs(Mode.SUBINTERP)
def test_a_module_that_can_not_load_in_a_subinterpreter_is_named(engine):
    pytest.importorskip("fastapi")
    without = config(mode=Mode.SUBINTERP, images="auto,-pydantic_core", app="support.apps.fast:app")
    with pytest.raises(ModeUnavailable, match="pydantic_core"):
        ShardGateway(engine, without).start()


@pytest.mark.parametrize("mode", MODES)
def test_an_engine_that_does_not_answer_fails_the_start_with_that_reason(engine, mode):
    engine.set_faults(router_silent=True)
    gateway = ShardGateway(engine, config(mode=mode, health_timeout_seconds=0.5))
    with pytest.raises(ShardStartError, match=r"did not answer the shard's first request within 0\.5 s"):
        gateway.start()


def test_a_shard_that_starts_too_slowly_is_said_to(engine):
    engine.set_faults(router_silent=True)
    gateway = ShardGateway(engine, config(mode=Mode.PROCESS, start_timeout_seconds=1.0))
    with pytest.raises(ShardStartError, match=r"not ready within 1 s"):
        gateway.start()


@pytest.mark.parametrize("mode", MODES)
def test_a_dead_engine_ends_what_runs_with_503_and_the_gateway_with_its_reason(engine, mode):
    with ShardGateway(engine, config(mode=mode)) as gateway:
        stream = Stream(gateway, tokens=3000)
        engine.crash("scheduler_0 was killed by SIGKILL")
        stream.join(5)
        assert not stream.is_alive()
        assert stream.error is None
        assert "scheduler_0 was killed by SIGKILL" in stream.events[-2]
        assert stream.events[-1] == "data: [DONE]"
        assert gateway.wait(5)
        with pytest.raises(EngineDied, match="scheduler_0 was killed by SIGKILL"):
            gateway.raise_failure()


def test_a_killed_process_shard_comes_back_and_harms_no_other_stream(engine):
    with ShardGateway(engine, config(mode=Mode.PROCESS)) as gateway:
        streams = [Stream(gateway, tokens=300) for _ in range(2)]
        victim, other = streams
        assert victim.shard != other.shard
        os.kill(gateway.shards[victim.shard]["pid"], signal.SIGKILL)
        killed = time.monotonic()
        victim.join()
        assert isinstance(victim.error, httpx.HTTPError), "its connection broke"
        until(lambda: engine.running() <= 1)
        until(
            lambda: gateway.shards[victim.shard]["state"] == "ready" and gateway.shards[victim.shard]["generation"] == 2
        )
        print(f"serving again after {time.monotonic() - killed:.2f} s")
        other.join()
        assert other.error is None
        assert other.events[-1] == "data: [DONE]"
        shards = {generate(gateway).headers["x-sglang-subgw-shard"] for _ in range(4)}
        assert shards == {"0", "1"}
    assert engine.violations == []


@needs(Mode.SUBINTERP)
@pytest.mark.parametrize("text", ["hello", "hello " * INLINE_CHARACTERS], ids=["short", "long"])
def test_no_thread_of_a_library_outlives_a_shard(engine: SimulatedEngine, text: str):
    def threads() -> int:
        return len(list(Path("/proc/self/task").iterdir()))

    before = threads()
    with ShardGateway(engine, config(mode=Mode.SUBINTERP, shards=1)) as gateway:
        for generation in (1, 2, 3):
            until(lambda wanted=generation: gateway.shards[0]["generation"] == wanted)
            until(lambda: gateway.shards[0]["state"] == "ready")
            assert generate(gateway, text=text).status_code in (200, 400)
            gateway.restart_shards()
    until(lambda: threads() == before)


def test_a_shard_that_keeps_dying_fails_the_gateway_with_the_reason(engine):
    with ShardGateway(engine, config(mode=Mode.PROCESS, shards=1)) as gateway:

        def killed_or_ended() -> bool:
            shard = gateway.shards[0]
            if shard["state"] == ShardState.READY.name.lower():
                # It may have ended since.
                with contextlib.suppress(ProcessLookupError):
                    os.kill(shard["pid"], signal.SIGKILL)
            return gateway.wait(0.01)

        until(killed_or_ended, 30)
        with pytest.raises(ShardFailed, match="Shard 0 failed: killed by SIGKILL"):
            gateway.raise_failure()


@pytest.mark.parametrize("mode", MODES)
def test_a_stream_that_fits_into_the_drain_finishes(engine, mode):
    with ShardGateway(engine, config(mode=mode)) as gateway:
        stream = Stream(gateway, tokens=100)
        gateway.drain(30)
        stream.join()
        assert stream.error is None
        assert '"finish_reason":{"type":"length","length":100}' in stream.events[-2]
        assert stream.events[-1] == "data: [DONE]"


@pytest.mark.parametrize("mode", MODES)
def test_a_stream_that_does_not_fit_ends_with_an_error_that_says_why(engine, mode):
    with ShardGateway(engine, config(mode=mode)) as gateway:
        stream = Stream(gateway, tokens=3000)
        gateway.drain(1)
        stream.join()
        assert stream.error is None
        assert "did not end within the 1 s" in stream.events[-2]
        assert engine.wait_idle(5), "it was aborted in the engine"


@pytest.mark.parametrize("mode", MODES)
def test_an_engine_that_dies_during_a_drain_ends_what_runs_with_its_reason(engine, mode):
    with ShardGateway(engine, config(mode=mode)) as gateway:
        stream = Stream(gateway, tokens=3000)
        gateway.begin_drain(60)
        until(lambda: {shard["state"] for shard in gateway.shards} == {"draining"})
        engine.crash("scheduler_0 was killed by SIGKILL")
        stream.join(5)
        assert stream.error is None
        assert "scheduler_0 was killed by SIGKILL" in stream.events[-2]
        assert gateway.wait(5)


@pytest.mark.parametrize("mode", MODES)
def test_a_second_drain_does_not_wait_for_the_first(engine, mode):
    with ShardGateway(engine, config(mode=mode)) as gateway:
        stream = Stream(gateway, tokens=3000)
        gateway.begin_drain(60)
        until(lambda: {shard["state"] for shard in gateway.shards} == {"draining"})
        gateway.begin_drain(0.0)
        stream.join(3)
        assert stream.error is None
        assert "did not end within the 0 s" in stream.events[-2]
        assert gateway.wait(3)


@pytest.mark.parametrize("mode", MODES)
def test_stop_ends_now_and_may_be_called_twice(engine, mode):
    gateway = ShardGateway(engine, config(mode=mode))
    gateway.start()
    stream = Stream(gateway, tokens=3000)
    gateway.stop()
    gateway.stop()
    stream.join(5)
    assert not stream.is_alive()
    assert engine.wait_idle(5)


@pytest.mark.parametrize("mode", MODES)
def test_shards_start_again_one_by_one_under_load_with_no_failed_request(engine, mode):
    """Kept-alive connections move to another shard; a stream is finished by the shard that began it."""
    with ShardGateway(engine, config(mode=mode, drain_timeout_seconds=20)) as gateway:
        stream = Stream(gateway, tokens=100)
        failures: list[str] = []
        served = [0]
        stop = threading.Event()

        def load() -> None:
            body = {"text": "hello world", "sampling_params": {"max_new_tokens": 2}}
            with httpx.Client(timeout=30) as client:
                while not stop.is_set():
                    try:
                        answer = client.post(f"{gateway.urls[0]}/generate", json=body)
                        if answer.status_code != 200:
                            failures.append(f"{answer.status_code} {answer.text}")
                        served[0] += 1
                    except httpx.HTTPError as exc:
                        failures.append(repr(exc))

        clients = [threading.Thread(target=load) for _ in range(4)]
        for client in clients:
            client.start()
        until(lambda: served[0] > 10)
        gateway.restart_shards()
        until(lambda: all(s["generation"] == 2 and s["state"] == "ready" for s in gateway.shards), 50)
        after = served[0]
        until(lambda: served[0] > after + 10)
        stop.set()
        for client in clients:
            client.join()
        assert failures == []
        stream.join()
        assert stream.error is None
        assert '"finish_reason":{"type":"length","length":100}' in stream.events[-2]
    assert engine.violations == []


def test_a_single_shard_starts_again_with_no_failed_request(engine):
    with ShardGateway(engine, config(mode=Mode.PROCESS, shards=1)) as gateway, httpx.Client(timeout=30) as client:
        assert client.post(f"{gateway.urls[0]}/generate", json={"text": "hello"}).status_code == 200
        gateway.restart_shards()
        until(lambda: gateway.shards[0]["state"] != "ready")
        # Its connection waits with the gateway until the shard is there again.
        assert client.post(f"{gateway.urls[0]}/generate", json={"text": "hello"}).status_code == 200
        assert gateway.shards[0]["generation"] == 2


def test_a_stalled_process_shard_is_reported_avoided_and_killed(engine, caplog):
    limits = {"stall_seconds": 0.7, "stall_kill_seconds": 3.0}
    with ShardGateway(engine, config(mode=Mode.PROCESS, **limits)) as gateway:
        victim = gateway.shards[0]["pid"]
        os.kill(victim, signal.SIGSTOP)
        until(lambda: "Shard 0 is stalled" in caplog.text)
        answers = [generate(gateway) for _ in range(4)]
        assert {answer.headers["x-sglang-subgw-shard"] for answer in answers} == {"1"}
        until(lambda: gateway.shards[0]["generation"] == 2 and gateway.shards[0]["state"] == "ready")
        assert gateway.shards[0]["pid"] != victim
        assert "Shard 0 was killed" in caplog.text
