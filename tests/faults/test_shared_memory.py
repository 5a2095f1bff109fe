"""Shared memory is full: the start fails with a reason, before anything is written to memory that isn't there."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from sglang_subgw.config import GatewayConfig, Mode
from sglang_subgw.contract.segment import NAME_PREFIX
from sglang_subgw.errors import ContractError
from sglang_subgw.gateway import ShardGateway
from sglang_subgw.simulated import SimulatedEngine
from support.attached import simulated_owner
from support.mounts import tiny


@pytest.mark.parametrize("options", [("--engine-only",), ("--mode", "process", "--port", "0")], ids=["engine", "serve"])
def test_a_full_shared_memory_ends_the_command_with_a_hint_and_no_signal(options: tuple[str, ...], short_dir: Path):
    with simulated_owner(
        *options, prefix=tiny(Path("/dev/shm"), "4k"), environment={"TMPDIR": str(short_dir)}
    ) as command:
        assert command.wait() == 1, command.log
    last = command.log.splitlines()[-1]
    assert last.startswith("sglang_subgw: No shared memory of "), last
    assert "No space left on device" in last
    assert last.endswith("Free space in /dev/shm, or give the container a larger one.")
    assert list(short_dir.iterdir()) == []


def test_a_start_without_shared_memory_is_a_contract_error_and_leaves_nothing(
    runtime_dir: Path, mode: Mode, monkeypatch: pytest.MonkeyPatch
):
    def full(fd: int, offset: int, length: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with SimulatedEngine(runtime_dir) as engine:
        monkeypatch.setattr(os, "posix_fallocate", full)
        with pytest.raises(
            ContractError, match=r"No shared memory of \d+ bytes .*No space left.* Free space in /dev/shm"
        ):
            ShardGateway(engine, GatewayConfig(mode=mode, port=0, log_level="warning")).start()
        monkeypatch.undo()
        assert not list(Path("/dev/shm").glob(f"{NAME_PREFIX}{os.getpid()}_*"))
        assert engine.registered == []
        with ShardGateway(engine, GatewayConfig(mode=mode, port=0, log_level="warning", shards=1)) as gateway:
            assert gateway.shards[0]["state"] == "ready"
