"""What a Gateway takes as its engine: somebody else's, one that exists, or nothing that could be one."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import sglang_subgw
from sglang_subgw.config import Mode
from sglang_subgw.engine.attach.attached import AttachedEngine
from sglang_subgw.engine.attach.published import PublishedEngine
from sglang_subgw.errors import ConfigError, ContractError, EngineDied
from sglang_subgw.simulated import SimulatedEngine, SimulatedEngineProcess
from support.client import client, raw_request, read_until
from support.stack import echoed, generate_body


def made(source: object, mode: Mode = Mode.PROCESS, **settings: Any) -> sglang_subgw.Gateway:
    return sglang_subgw.Gateway(source, **({"shards": 1, "mode": mode, "port": 0, "log_level": "warning"} | settings))


def text(gateway: sglang_subgw.Gateway, prompt: str = "<01>") -> str:
    with client(gateway.address) as one:
        return str(one.post("/generate", json=generate_body(prompt, 6)).json()["text"])


@pytest.fixture
def engine(runtime_dir: Path) -> Iterator[SimulatedEngine]:
    with SimulatedEngine(runtime_dir, step_seconds=0.005) as engine:
        yield engine
        assert engine.violations == []


@pytest.fixture
def published(engine: SimulatedEngine) -> Iterator[PublishedEngine]:
    with PublishedEngine(engine) as published:
        yield published


def test_an_engine_of_another_process_by_its_pid(runtime_dir: Path, mode: Mode):
    with SimulatedEngineProcess(runtime_dir) as engine:
        with made(engine.pid, mode) as gateway:
            assert text(gateway) == echoed("<01>", 6)
            assert gateway.engine_name == engine.segment
        with made(str(engine.pid), mode) as gateway:
            assert text(gateway) == echoed("<01>", 6)
        assert engine.router_alive()


def test_an_engine_by_its_segment_s_name(published: PublishedEngine):
    with made(published.name) as gateway:
        assert text(gateway) == echoed("<01>", 6)
        assert gateway.engine_name == published.name


def test_one_that_is_attached_already_stays_so(published: PublishedEngine):
    with AttachedEngine.attach(published.name) as attached:
        for _ in range(2):
            with made(attached) as gateway:
                assert gateway.engine is attached
                assert text(gateway) == echoed("<01>", 6)


def test_when_its_owner_stops_it_the_gateway_drains(engine: SimulatedEngine):
    with PublishedEngine(engine) as published, made(published.name) as gateway:
        sock = raw_request(gateway.address, "/generate", generate_body("abc", 40))
        engine.wait_for(lambda: engine.running() == 1)
        published.draining()
        assert b"200 OK" in read_until(sock, b"\r\n\r\n")
        sock.close()
        assert gateway.wait(10)
        assert not gateway.failure


def test_when_its_owner_is_killed_the_gateway_ends_with_that_reason(runtime_dir: Path):
    with SimulatedEngineProcess(runtime_dir) as engine, made(engine.pid) as gateway:
        engine.kill()
        assert gateway.wait(10)
        with pytest.raises(EngineDied, match="that owns the engine ended"):
            gateway.raise_failure()


@pytest.mark.parametrize("source", [True, 3.5, ..., "Qwen/Qwen3-0.6B", "", b"123"], ids=repr)
def test_what_means_no_engine_is_refused_with_what_would(source: object):
    with pytest.raises(ConfigError, match=r"It takes an sglang\.Engine; a dict or a list of SGLang's arguments"):
        made(source).start()


def test_a_pid_without_an_engine_is_refused_with_those_there_are(published: PublishedEngine):
    with pytest.raises(ContractError, match="neither the pid nor the segment") as failure:
        made(1).start()
    assert published.name in str(failure.value.hint)


@pytest.mark.parametrize(
    "arguments", [{"tokenizer_worker_num": 3}, ["--tokenizer-worker-num", "3"], ("--tokenizer-worker-num=3",)], ids=str
)
def test_a_number_of_workers_that_contradicts_that_of_shards_is_refused(arguments: object):
    with pytest.raises(ConfigError, match="--shards 1 and --tokenizer-worker-num 3 differ"):
        made(arguments).start()


class Engine(SimpleNamespace):
    """Takes the place of sglang.Engine where that can't be had."""


@pytest.fixture
def fake_sglang(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("sglang.srt.entrypoints.engine")
    module.Engine = Engine  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "sglang.srt.entrypoints.engine", module)


@pytest.mark.parametrize(
    ("engine", "said"),
    [
        (Engine(tokenizer_router=None), "single tokenizer worker.* Make it with tokenizer_worker_num=2"),
        (Engine(_attached=True, tokenizer_router=None), "attached to one of another process. Wrap that one"),
        (
            Engine(tokenizer_router=object(), server_args=SimpleNamespace(api_key="secret")),
            "--api-key is not supported",
        ),
    ],
    ids=["one worker", "attached", "key"],
)
def test_an_engine_that_shards_can_not_join_is_refused_with_what_to_do(fake_sglang: None, engine: Engine, said: str):
    with pytest.raises(ConfigError, match=said):
        made(engine).start()


# Two engines.


def test_two_engines_of_one_process_with_a_gateway_each_do_not_meet(tmp_path_factory: Any, mode: Mode):
    directories = [tmp_path_factory.mktemp(name) for name in ("a", "b")]
    with (
        SimulatedEngine(directories[0], step_seconds=0.005) as first,
        SimulatedEngine(directories[1], step_seconds=0.005) as second,
        made(first, mode, shards=2) as one,
        made(second, mode, shards=2) as other,
    ):
        gateways = (one, other)
        assert one.engine_name != other.engine_name
        threads = [
            threading.Thread(target=text, args=(gateway, f"<{number:02d}>"))
            for number in range(6)
            for gateway in gateways
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for engine, gateway in ((first, one), (second, other)):
            own = gateway._shards.contract.gateway_id
            prompts = [request for request in engine.requests() if len(request.input_ids) == 4]
            assert len(prompts) == 6
            assert {request.rid[: len(own)] for request in prompts} == {own}
            assert len(engine.registered) == 2
        with pytest.raises(ContractError, match="has several engines"):
            made(one._shards.segment.owner_pid).start()  # type: ignore[union-attr]
        first.crash("it was the first")
        assert one.wait(10)
        assert text(other) == echoed("<01>", 6)
    assert second.violations == []


def test_two_gateways_of_one_engine_share_it_and_leave_it_to_each_other(engine: SimulatedEngine, mode: Mode):
    with made(engine, mode) as one:
        with made(engine, mode) as other:
            assert text(one) == text(other) == echoed("<01>", 6)
            raw = raw_request(other.address, "/generate", generate_body("abc", 4000, ignore_eos=True))
            engine.wait_for(lambda: engine.running() == 1)
        raw.close()
        assert engine.wait_idle()
        assert text(one) == echoed("<01>", 6)
