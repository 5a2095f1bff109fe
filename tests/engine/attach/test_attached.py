"""Attaching from this process: what is found, what is refused and why, and how the owner's end is noticed."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from sglang_subgw.config import GatewayConfig, Mode
from sglang_subgw.contract import GatewayState, Segment
from sglang_subgw.engine.attach import attachable, attached
from sglang_subgw.engine.attach.attached import AttachedEngine
from sglang_subgw.engine.attach.published import PublishedEngine
from sglang_subgw.errors import ContractError
from sglang_subgw.gateway import ShardGateway
from sglang_subgw.simulated import SimulatedEngine, SimulatedEngineProcess
from support.modes import needs
from support.stack import generate_body


@pytest.fixture
def engine(runtime_dir: Path) -> Iterator[SimulatedEngine]:
    with SimulatedEngine(runtime_dir, step_seconds=0.005) as engine:
        yield engine


@pytest.fixture
def published(engine: SimulatedEngine) -> Iterator[PublishedEngine]:
    with PublishedEngine(engine) as published:
        yield published


def segment_file(published: PublishedEngine) -> Path:
    return Path("/dev/shm") / published.name


def reason_of(published: PublishedEngine) -> str:
    with pytest.raises(ContractError) as caught:
        AttachedEngine.attach(published.name)
    return caught.value.message


def test_it_is_found_by_its_segment_and_by_its_owner(engine: SimulatedEngine, published: PublishedEngine):
    for target in (published.name, str(os.getpid())):
        with AttachedEngine.attach(target) as found:
            assert found.contract.engine_id == engine.contract.engine_id
            assert found.contract.attached_to == published.name
            assert found.owner_pid == os.getpid()
    assert f"{os.getpid()} ({published.name}), simulated-model" in attachable.listing()


def test_what_does_not_exist_is_answered_with_what_does(published: PublishedEngine):
    with pytest.raises(ContractError, match=rf"'4194305' is neither .* attached to: .*{published.name}"):
        AttachedEngine.attach("4194305")


def test_another_user_s_is_refused(published: PublishedEngine, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert "belongs to another user" in reason_of(published)
    assert all(published.name not in line for line in attachable.listing())


def test_one_that_others_can_write_is_refused(published: PublishedEngine):
    segment_file(published).chmod(0o666)
    assert "is open to other users (mode 666)" in reason_of(published)


def test_another_layout_is_refused(published: PublishedEngine):
    with segment_file(published).open("r+b") as file:
        file.seek(8)
        file.write(struct.pack("<I", 99))
    assert "has layout 99" in reason_of(published)


@pytest.mark.parametrize(("offset", "value"), [(40, 2**40), (48, 2**40), (12, 2**31)])
def test_sizes_that_do_not_fit_are_refused(published: PublishedEngine, offset: int, value: int):
    with segment_file(published).open("r+b") as file:
        file.seek(offset)
        file.write(struct.pack("<I" if offset == 12 else "<Q", value))
    assert "is damaged" in reason_of(published)


def test_a_contract_of_another_version_is_refused(published: PublishedEngine):
    path = segment_file(published)
    path.write_bytes(path.read_bytes().replace(b'"sglang_version"', b'"sglang_versiom"'))
    assert "can't be read" in reason_of(published)


def test_a_dead_owner_is_refused(published: PublishedEngine):
    with segment_file(published).open("r+b") as file:
        file.seek(24)
        file.write(struct.pack("<Q", 1))
    assert f"The process {os.getpid()} that published {published.name} has ended" in reason_of(published)


def test_an_engine_that_stops_or_failed_is_refused(published: PublishedEngine):
    with Segment.attach(published.name) as segment:
        segment.set_state(GatewayState.DRAINING)
        assert "is stopping" in reason_of(published)
        segment.set_state(GatewayState.FAILED, "out of memory")
        assert "has failed: out of memory" in reason_of(published)


def test_a_process_with_several_engines_needs_a_name(
    engine: SimulatedEngine, published: PublishedEngine, tmp_path: Path
):
    with SimulatedEngine(tmp_path) as second, PublishedEngine(second) as other:
        with pytest.raises(ContractError, match=rf"several engines.*({published.name}.*{other.name}|{other.name}.*)"):
            AttachedEngine.attach(str(os.getpid()))
        AttachedEngine.attach(other.name).close()


@pytest.mark.parametrize("pidfds", [True, False], ids=["pidfd", "polled"])
def test_the_owner_s_death_is_noticed(runtime_dir: Path, monkeypatch: pytest.MonkeyPatch, pidfds: bool):
    if not pidfds:
        monkeypatch.setattr(attached, "_pidfd", lambda pid: -1)
    with SimulatedEngineProcess(runtime_dir) as engine, AttachedEngine.attach(engine.segment) as found:
        reasons: list[str] = []
        found.on_death(reasons.append)
        engine.kill()
        found._thread.join(5)
        assert reasons == [f"the process {engine.pid} that owns the engine ended"]
        found.on_death(reasons.append)
        assert len(reasons) == 2, "who asks later is told as well"


@needs(Mode.SUBINTERP)
def test_gateways_side_by_side_on_one_engine_keep_to_themselves(engine: SimulatedEngine, published: PublishedEngine):
    config = GatewayConfig(shards=2, mode="subinterp", port=0, log_level="warning")
    with (
        AttachedEngine.attach(published.name) as found,
        ShardGateway(engine, config) as own,
        ShardGateway(found, config) as other,
    ):
        assert own.contract.gateway_id != other.contract.gateway_id
        assert len(set(engine.registered)) == 4
        for gateway in (own, other, own, other):
            answer = httpx.post(f"{gateway.urls[0]}/generate", json=generate_body("abc", 3), timeout=20)
            assert answer.json()["text"] == "abc"
        rids = [request.rid.removeprefix("HEALTH_CHECK_") for request in engine.requests()]
        assert {rid[:12] for rid in rids} == {own.contract.gateway_id, other.contract.gateway_id}
        assert len(set(rids)) == len(rids)
    assert engine.violations == []


def test_nothing_of_sglang_is_imported_for_it():
    program = (
        "import sys, sglang_subgw.cli.attach\n"
        "print(sorted({'sglang', 'torch', 'transformers', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
