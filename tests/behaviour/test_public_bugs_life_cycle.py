"""One test for each public report on starts, and on leaders that are killed and what they leave, named after it."""

from __future__ import annotations

import contextlib
import os
import random
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from sglang_subgw.config import GatewayConfig, Mode
from sglang_subgw.contract.segment import NAME_PREFIX
from sglang_subgw.engine.attach.published import PublishedEngine
from sglang_subgw.errors import ShardStartError
from sglang_subgw.gateway import ShardGateway
from sglang_subgw.simulated import SimulatedEngine
from support.attached import CommandProcess, attached, simulated_owner
from support.client import client
from support.faults import until
from support.programs import IMPORTABLE
from support.stack import Stack, generate_body

KILLS = int(os.environ.get("SUBGW_TEST_KILLS", "4"))
"""How often a leader is killed while it starts, in each mode."""
_FAMILY = "SUBGW_TEST_FAMILY"
"""Inherited by whatever a leader starts, however far down."""


@pytest.fixture
def engine(runtime_dir: Path) -> Iterator[SimulatedEngine]:
    with SimulatedEngine(runtime_dir, step_seconds=0.01) as engine:
        yield engine
        assert engine.wait_idle(5)
        assert engine.violations == []


@pytest.fixture
def published(engine: SimulatedEngine) -> Iterator[PublishedEngine]:
    with PublishedEngine(engine) as published:
        yield published


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def is_free(port: int) -> bool:
    with socket.socket() as sock:
        # As servers do: what is closed already and waits for late packets is no owner.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with contextlib.suppress(OSError):
            sock.bind(("127.0.0.1", port))
            sock.listen()
            return True
    return False


def family(name: str) -> list[str]:
    """The command lines of all living processes that inherited the name."""
    mark = f"{_FAMILY}={name}".encode()
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if mark in path.read_bytes().split(b"\0"):
                found.append((path.parent / "cmdline").read_bytes().replace(b"\0", b" ").decode())
    return found


def files_in(directory: Path) -> set[str]:
    return {str(path.relative_to(directory)) for path in directory.rglob("*") if not path.is_dir()}


def segments_of(pid: int) -> list[str]:
    return [path.name for path in Path("/dev/shm").glob(f"*_{pid}_*") if path.name.startswith(NAME_PREFIX)]


def serve_and_stop(gateway: CommandProcess) -> None:
    with client(gateway.address) as one:
        assert one.post("/generate", json=generate_body("abc", 3)).json()["text"] == "abc"
    gateway.send(signal.SIGTERM)
    assert gateway.wait() == 0, gateway.log


def kill_at(moment: float, start: Callable[[], CommandProcess], name: str) -> int:
    """A leader killed so many seconds after its start, and with it in 5 s all that it had started; its pid."""
    with start() as leader:
        time.sleep(moment)
        leader.send(signal.SIGKILL)
        until(lambda: not family(name), 5, f"the end of all that was there {moment:.3f} s after the start")
        assert leader.wait() == -signal.SIGKILL, leader.log
        return leader.pid


@pytest.mark.timeout(60 + 8 * KILLS)
def test_15165_27190_38218_23627_a_leader_killed_while_it_starts_leaves_no_process_and_a_free_port(
    mode: Mode, published: PublishedEngine, runtime_dir: Path
):
    port, name = free_port(), secrets.token_hex(4)

    def start() -> CommandProcess:
        return attached(published.name, "--port", str(port), mode=mode, environment={_FAMILY: name})

    began = time.monotonic()
    with start() as gateway:
        assert len(family(name)) >= 1
        assert gateway.banner
        seconds = time.monotonic() - began
        serve_and_stop(gateway)
    before = files_in(runtime_dir)
    seed = secrets.randbits(32)
    print(f"seed {seed}, {seconds:.2f} s to the banner")
    moments = random.Random(seed)
    killed = []
    for number in range(KILLS):
        # Each in a part of the start of its own, and some after it.
        killed.append(kill_at(seconds * 1.1 * (number + moments.random()) / KILLS, start, name))
        assert is_free(port)
    with start() as gateway:
        serve_and_stop(gateway)
    assert [left for pid in killed for left in segments_of(pid)] == []
    assert files_in(runtime_dir) == before


@pytest.mark.timeout(60 + 8 * KILLS)
def test_15165_27190_38218_23627_the_engine_s_own_leader_killed_while_it_starts_leaves_nothing_to_the_next(
    mode: Mode,
):
    """Here the port is bound before the engine loads; what is left is also the directory of the engine's sockets."""
    port, name = free_port(), secrets.token_hex(4)

    def start() -> CommandProcess:
        options = ("--port", str(port), "--mode", mode, "--shards", "2")
        return simulated_owner(*options, environment={_FAMILY: name})

    moments = random.Random()
    killed = []
    for _ in range(max(2, KILLS // 2)):
        killed.append(kill_at(moments.uniform(0.05, 0.8), start, name))
        assert is_free(port)
    with start() as gateway:
        assert gateway.banner
        for pid in killed:
            assert segments_of(pid) == []
            assert list(Path(tempfile.gettempdir()).glob(f"subgw-{pid}-*")) == []
        serve_and_stop(gateway)


def test_145_276_shards_are_not_bound_to_the_thread_that_started_the_gateway(mode: Mode, engine: SimulatedEngine):
    """The kernel's signal at a parent's death comes at the death of the parent's thread."""
    gateway = ShardGateway(engine, GatewayConfig(mode=mode, shards=2, port=0, log_level="warning"))
    starter = threading.Thread(target=gateway.start)
    starter.start()
    starter.join()
    try:
        with client(gateway.address) as one:
            for _ in range(4):
                assert one.post("/generate", json=generate_body("abc", 3)).json()["text"] == "abc"
        assert [(shard["generation"], shard["state"]) for shard in gateway.shards] == [(1, "ready")] * 2
    finally:
        gateway.stop()


def test_6784_a_server_that_is_pid_1_of_its_container_has_living_shards(mode: Mode):
    unshare = [shutil.which("unshare") or "", "--user", "--map-root-user", "--pid", "--fork", "--mount", "--mount-proc"]
    if not unshare[0] or subprocess.run([*unshare, "true"], capture_output=True, check=False).returncode:
        pytest.skip("pid namespaces can't be made here")
    # What is named after pid 1 would be a dead one's to everybody outside.
    own_memory = ("sh", "-c", 'mount -t tmpfs tmpfs /dev/shm && exec "$@"', "sh")
    options = ("--port", "0", "--mode", mode, "--shards", "2")
    with (
        tempfile.TemporaryDirectory(prefix="sgt-") as directory,
        simulated_owner(*options, prefix=(*unshare, *own_memory), environment={"TMPDIR": directory}) as gateway,
    ):
        with client(gateway.address) as one:
            assert one.post("/generate", json=generate_body("abc", 3)).json()["text"] == "abc"
            shards = one.get("/server_info").json()["sglang_subgw"]["shards"]
        assert [(shard["generation"], shard["last_failure"]) for shard in shards] == [(1, "")] * 2
        [server] = psutil.Process(gateway.pid).children()
        server.send_signal(signal.SIGTERM)
        assert gateway.wait() == 0, gateway.log


@pytest.mark.timeout(120)
def test_2289_1872_ctrl_c_at_any_moment_of_the_start_ends_it_and_leaves_nothing(
    mode: Mode, published: PublishedEngine, runtime_dir: Path
):
    moments = random.Random()
    before = files_in(runtime_dir)
    for _ in range(5):
        with attached(published.name, mode=mode) as gateway:
            until(lambda: "attaching" in gateway.log, what="the start")
            time.sleep(moments.uniform(0, 0.3))
            gateway.send(signal.SIGINT)
            # It may have served already.
            assert gateway.wait() in (128 + signal.SIGINT, 0), gateway.log
            assert "Traceback" not in gateway.log, gateway.log
        assert segments_of(gateway.pid) == []
        assert files_in(runtime_dir) == before


def test_2289_1872_ctrl_c_while_an_application_starts_ends_it_with_128_and_the_signal_s_number(
    mode: Mode, published: PublishedEngine
):
    with attached(published.name, "--app", "support.apps.slow:app", mode=mode, environment=IMPORTABLE) as gateway:
        until(lambda: "starting 2 shards" in gateway.log, what="the start")
        gateway.send(signal.SIGINT)
        assert gateway.wait() == 128 + signal.SIGINT, gateway.log
        assert "Stopped by SIGINT before it served." in gateway.log
        assert "Traceback" not in gateway.log, gateway.log


def test_a_start_that_is_cancelled_from_another_thread_fails_and_leaves_nothing(mode: Mode, engine: SimulatedEngine):
    for seconds in (0.0, 0.1):
        gateway = ShardGateway(engine, GatewayConfig(mode=mode, port=0, app="support.apps.slow:app"))
        timer = threading.Timer(seconds, gateway.cancel_start)
        timer.start()
        with pytest.raises(ShardStartError, match="The start was stopped"):
            gateway.start()
        timer.join()


def test_10121_25040_22357_2500_999_a_start_that_takes_much_longer_than_any_ping_is_no_death(
    make_stack: Callable[..., Stack], caplog: pytest.LogCaptureFixture
):
    """Readiness has its own clock: of these shards' first three seconds their loops stand still for two."""
    began = time.monotonic()
    stack = make_stack(
        config={"app": "support.apps.slow:app", "stall_seconds": 1.0, "stall_kill_seconds": 1.3, "log_level": "info"}
    )
    assert time.monotonic() - began > 3
    assert [shard["generation"] for shard in stack.gateway.shards] == [1, 1]
    with stack.client_per_shard() as clients:
        for one in clients:
            assert one.post("/generate", json=generate_body("abc", 3)).json()["text"] == "abc"
    assert [shard["generation"] for shard in stack.gateway.shards] == [1, 1]
    assert "stalled" not in caplog.text


@pytest.mark.timeout(120)
def test_21665_8803_8933_337_340_ten_lives_some_of_them_killed_leave_no_shared_memory_and_no_warning(mode: Mode):
    pids = []
    for number in range(10):
        with simulated_owner("--port", "0", "--mode", mode, "--shards", "1") as gateway:
            pids.append(gateway.pid)
            if number % 3 == 1:
                assert gateway.banner
                assert len(segments_of(gateway.pid)) == 1
                gateway.send(signal.SIGKILL)
                assert gateway.wait() == -signal.SIGKILL
            else:
                serve_and_stop(gateway)
                assert segments_of(gateway.pid) == []
        assert not re.search(r"resource_tracker|leaked|[Ww]arn(ings?\.|ing:)|Traceback|Error", gateway.log), gateway.log
    assert [left for pid in pids for left in segments_of(pid)] == []
    assert [path for pid in pids for path in Path(tempfile.gettempdir()).glob(f"subgw-{pid}-*")] == []


def test_340_a_segment_that_can_not_be_made_is_unregistered_by_nobody():
    """A failed create of multiprocessing's own emits a stray unregister, of which its tracker complains."""
    code = """
from unittest import mock
from sglang_subgw.contract import Segment, segment
from sglang_subgw.simulated.contract import simulated_contract
from sglang_subgw.simulated.tokenizer import ByteTokenizer
import pathlib, sys
contract = simulated_contract(pathlib.Path(sys.argv[1]), ByteTokenizer(), codec="pickle", model={}, features={})
with mock.patch.object(segment.secrets, "token_hex", lambda n: "0" * 8):
    first = Segment.publish(contract, slots=1)
    try:
        Segment.publish(contract, slots=1)
    except segment.ContractError as exc:
        print(exc)
    first.close()
"""
    with tempfile.TemporaryDirectory() as directory:
        done = subprocess.run(
            [sys.executable, "-X", "dev", "-c", code, directory], capture_output=True, text=True, timeout=30, check=True
        )
    assert "File exists" in done.stdout
    assert done.stderr == ""
