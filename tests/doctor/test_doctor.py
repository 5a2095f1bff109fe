"""`doctor`: what it finds, what it removes, what it says by its exit status."""

from __future__ import annotations

import json
import os
import resource
import socket
import subprocess
import sys
import tempfile
import time
from types import SimpleNamespace

import pytest

from sglang_subgw.__main__ import main
from sglang_subgw.config import Mode
from sglang_subgw.contract import GatewayState, Segment, ShardState, Word, segment
from sglang_subgw.doctor import leftovers
from sglang_subgw.engine.launch import shared_memory


@pytest.fixture(autouse=True)
def own_places(monkeypatch, tmp_path):
    """Other gateways of this machine, and what they leave, are none of these tests' business."""
    shm, tmp = tmp_path / "shm", tmp_path / "tmp"
    shm.mkdir()
    tmp.mkdir()
    monkeypatch.setattr(leftovers, "_SHM_DIR", shm)
    monkeypatch.setattr(shared_memory, "_SHM_DIR", shm)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp))
    return shm, tmp


@pytest.fixture
def no_segments(monkeypatch, own_places):
    monkeypatch.setattr(segment, "_SHM_DIR", own_places[0])


@pytest.fixture(scope="module")
def dead_pid():
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def _json(capsys, *argv):
    status = main(["doctor", "--json", *argv])
    report = json.loads(capsys.readouterr().out)
    assert report["healthy"] is (status == 0)
    return report


def test_a_healthy_machine(no_segments, capsys):
    report = _json(capsys)
    assert report["problems"] == []
    assert report["mode"]["picked"] in ("subinterp", "thread")
    modules = {module["name"]: module for module in report["modules"]}
    extensions = [module for module in modules.values() if module["status"] in ("image", "native")]
    assert extensions
    assert all(module["version"] for module in extensions)
    assert modules["uvicorn"]["status"] == "python"
    assert {limit["name"] for limit in report["limits"]} == {"open files", "shared memory", "accept queue"}
    assert main(["doctor"]) == 0
    text = capsys.readouterr().out
    assert text.endswith("Healthy.\n")
    assert all(name in text for name in modules), "the text tells what the data do"


def test_what_dead_owners_left_is_told_and_removed(no_segments, own_places, dead_pid, capsys):
    shm, tmp = own_places
    name = shm / f"sglang_subgw_{dead_pid}_0123abcd"
    name.write_bytes(b"x" * 4096)
    (shm / f"multi_tokenizer_args_{dead_pid}").write_bytes(b"x")
    (shm / "sglang_loads_0123456789ab_0184f030.shm").write_bytes(b"x")
    directory = tmp / f"subgw-{dead_pid}-12345-abcdefgh"
    (directory / "e").mkdir(parents=True)
    shared_memory.note(directory / "e", SimpleNamespace(instance_id="0123456789ab"))
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(directory / "s"))
    report = _json(capsys)
    assert not report["healthy"]
    assert [(one["kind"], one["sockets"]) for one in report["leftovers"]] == [
        ("segment", 0),
        ("sglang segment", 0),
        ("sglang segment", 0),
        ("directory", 1),
    ]
    report = _json(capsys, "--fix")
    assert report["healthy"]
    assert len(report["removed"]) == 4
    assert list(shm.iterdir()) == list(tmp.iterdir()) == []


def test_what_living_owners_have_is_left_alone(no_segments, own_places, capsys):
    shm, _ = own_places
    (shm / f"multi_tokenizer_args_{os.getpid()}").write_bytes(b"x")
    (shm / "sglang_loads_0123456789ab_0184f030.shm").write_bytes(b"of an engine that left no note")
    assert _json(capsys, "--fix")["leftovers"] == []
    assert len(list(shm.iterdir())) == 2


def test_a_mode_that_can_not_run_is_not_healthy_and_named(no_segments, capsys):
    pytest.importorskip("fastapi")
    if sys._is_gil_enabled():
        without = ("--images", "auto,-pydantic_core", "--app", "support.apps.fast:app")
        report = _json(capsys, "--mode", "subinterp", *without)
        assert report["mode"]["picked"] is None
        assert "pydantic_core._pydantic_core is refused" in report["mode"]["problem"]
        assert {m["name"]: m["status"] for m in report["modules"]}["pydantic_core"] == "refused"
    report = _json(capsys, "--app", "support.apps.plain:absent")
    assert "has no attribute 'absent'" in report["problems"][0]


def test_an_application_falls_into_the_report(no_segments, capsys):
    pytest.importorskip("fastapi")
    report = _json(capsys, "--app", "support.apps.fast:app")
    assert ("pydantic_core", "app") in {(m["name"], m["needed_by"]) for m in report["modules"]}


def test_low_limits(no_segments, capsys, monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda which: (256, 1024))
    report = _json(capsys)
    assert report["problems"] == [
        "open files: only 256 open files: about 128 connections at a time. Raise it with ulimit -n."
    ]


def test_a_running_gateway(make_stack, mode, capsys):
    stack = make_stack()
    stack.generate("abcdef", 5)
    with stack.client() as client:
        client.get("/ping")
        for target in (stack.gateway.segment.name, stack.gateway.urls[0]):
            report = _json(capsys, target)
            (gateway,) = report["gateways"]
            assert gateway["segment"] == stack.gateway.segment.name
            assert gateway["state"] == "ready"
            assert [shard["state"] for shard in gateway["shards"]] == ["ready", "ready"]
            assert sum(shard["requests"] for shard in gateway["shards"]) >= 1
            assert sum(shard["connections"] for shard in gateway["shards"]) >= 1
            assert all(0 <= shard["heartbeat_age"] < 5 for shard in gateway["shards"])
    assert main(["doctor", stack.gateway.segment.name]) == 0
    assert f"segment {stack.gateway.segment.name}" in capsys.readouterr().out


@pytest.mark.parametrize("mode", [Mode.THREAD])
def test_a_shard_that_hangs_or_failed_is_not_healthy(make_stack, mode, capsys, monkeypatch):
    stack = make_stack()
    first, second = stack.gateway.segment.slots[:2]
    monkeypatch.setattr(time, "monotonic_ns", lambda real=time.monotonic_ns: real() + 60 * 10**9)
    second.set(Word.STATE, ShardState.FAILED)
    report = _json(capsys, stack.gateway.segment.name)
    problems = [problem for problem in report["problems"] if "shard" in problem]
    assert len(problems) == 2
    assert "shard 0: its event loop has not turned for" in problems[0]
    assert "shard 1: it failed" in problems[1]
    assert first.state is ShardState.READY


def test_a_gateway_that_hangs_itself_is_not_healthy(make_stack, capsys):
    """As one that was stopped: its shards in processes of their own go on, and nobody hands them connections."""
    stack = make_stack(shards=1)
    with Segment.publish(stack.gateway.contract, slots=1) as hanging:
        hanging.set_state(GatewayState.READY)
        assert _json(capsys, hanging.name)["problems"] == [], "an engine alone has no such thread"
        hanging.beat()
        age = hanging.heartbeat_age
        assert age is not None
        assert age < 1
        assert stack.wait_for(lambda: (hanging.heartbeat_age or 0) > 2.1)
        (problem,) = _json(capsys, hanging.name)["problems"]
        assert "its own thread has not turned for 2." in problem
        assert _json(capsys, stack.gateway.segment.name)["problems"] == []


@pytest.mark.parametrize(
    ("target", "status", "said"),
    [
        ("sglang_subgw_1_00000000", 1, "No gateway of sglang_subgw_1_00000000 is running here"),
        ("http://127.0.0.1:9", 1, "does not answer as a gateway does"),
        ("what", 2, "is no pid"),
    ],
)
def test_a_target_that_is_not_there(target, status, said, capsys):
    assert main(["doctor", target]) == status
    assert said in capsys.readouterr().err
