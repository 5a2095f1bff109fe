"""Reports 15165, 27190, 38218, 23627 on real SGLang: its leader is killed, and nothing of either's outlives it."""

from __future__ import annotations

import contextlib
import secrets
import signal
import socket
import tempfile
import time
from pathlib import Path

import httpx
import psutil
import pytest

from support.attached import CommandProcess
from support.faults import until
from support.real.servers import free_port

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(600)]

_FAMILY = "SUBGW_TEST_FAMILY"
_SHM = Path("/dev/shm")
GONE_SECONDS = 5.0
MOMENTS = ("starting the scheduler", "loading the model", "serving")
"""The first is when SGLang's processes import, before SGLang itself ties them to their parent."""


def marked(name: str) -> list[psutil.Process]:
    """Living processes that inherited the name; SGLang's lose it once they have given themselves titles."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get(_FAMILY) == name:
                found.append(process)
    return found


def living(processes: list[psutil.Process]) -> list[str]:
    found = []
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                found.append(f"{process.pid} {' '.join(process.cmdline())[:100]}")
    return found


def directories_of(pid: int) -> list[Path]:
    return list(Path(tempfile.gettempdir()).glob(f"subgw-{pid}-*"))


def shared_memory_of(pid: int) -> list[Path]:
    """This package's segment and both kinds of SGLang's, one of which is known by its engine's note only."""
    patterns = [f"sglang_subgw_{pid}_*", f"multi_tokenizer_args_{pid}"]
    for directory in directories_of(pid):
        patterns += [f"sglang_loads_*{note.name.removeprefix('instance-')}*" for note in directory.rglob("instance-*")]
    return [path for pattern in patterns for path in sorted(_SHM.glob(pattern))]


def reach(leader: CommandProcess, moment: str, port: int) -> None:
    """Wait until the start is that far."""
    if moment == "serving":
        assert leader.banner
        body = {"text": "The", "sampling_params": {"max_new_tokens": 2}}
        assert httpx.post(f"http://127.0.0.1:{port}/generate", json=body, timeout=60).status_code == 200
        return
    until(lambda: moment in leader.log, 240, moment)
    # In the midst of it.
    time.sleep(1.5)


def kill(leader: CommandProcess, name: str, processes: int) -> None:
    """The leader, and with it, in time, all of its processes, of which there are so many."""
    family = [psutil.Process(leader.pid), *psutil.Process(leader.pid).children(recursive=True)]
    assert len(family) == processes, living(family)
    leader.send(signal.SIGKILL)
    took = until(lambda: not living([*family, *marked(name)]), GONE_SECONDS, "the end of all processes")
    assert leader.wait() == -signal.SIGKILL
    print(f"all gone {took:.2f} s after it")


def is_free(port: int) -> bool:
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        return sock.connect_ex(("127.0.0.1", port)) != 0 and sock.bind(("127.0.0.1", port)) is None


def test_a_leader_that_is_killed_at_any_stage_leaves_no_process_and_its_files_to_the_next_start():
    port, name = free_port(), secrets.token_hex(4)
    arguments = ("--shards", "2", "--mode", "process", "--port", str(port))
    environment = {_FAMILY: name}
    theirs: list[Path] = []
    for moment in MOMENTS:
        with CommandProcess(*arguments, program="", environment=environment) as leader:
            reach(leader, moment, port)
            assert [path for path in theirs if path.exists()] == [], "the one before left it, and this one as well"
            theirs = [*shared_memory_of(leader.pid), *directories_of(leader.pid)]
            print(moment, *theirs, sep="\n  ")
            # The leader, the resource tracker, scheduler, detokenizer; two shards.
            kill(leader, name, 6 if moment == "serving" else 4)
            assert is_free(port)
    kinds = {path.name[:12] for path in theirs}
    assert kinds >= {"sglang_subgw", "multi_tokeni", "sglang_loads"}, kinds
    with CommandProcess(*arguments, program="", environment=environment) as last:
        until(lambda: "importing SGLang" in last.log, 60, "the next start")
        assert [path for path in theirs if path.exists()] == []
        last.send(signal.SIGTERM)
        assert last.wait(60) == 128 + signal.SIGTERM, last.log
    assert directories_of(last.pid) == shared_memory_of(last.pid) == []
