"""No space for the directory with sockets, seats and copies of extension modules: a clear error, and nothing left."""

from __future__ import annotations

import errno
import os
import re
import shutil
import tempfile
from pathlib import Path
from typing import Final, NoReturn

import pytest

from sglang_subgw.config import GatewayConfig, Mode
from sglang_subgw.errors import ShardStartError, StorageError
from sglang_subgw.gateway import ShardGateway
from sglang_subgw.gateway.runtime import make_runtime_dir
from sglang_subgw.modes import images
from sglang_subgw.simulated import SimulatedEngine
from support.attached import simulated_owner
from support.modes import needs
from support.mounts import tiny

TO_DO: Final = "Free space there, or set TMPDIR to another directory where the engine is started."
AND_SHOW_LEFTOVERS: Final = ("sh", "-c", '"$@"; s=$?; find "$TMPDIR" -mindepth 1 | sed "s/^/LEFT /" >&2; exit $s', "sh")

SIZES: Final = {
    "4k": r"The tokenizer's file can't be written to {}/subgw-\S+: No space left on device\.",
    "1m,nr_inodes=3": r"The tokenizer's socket can't be written to {}/subgw-\S+: No space left on device\.",
    "1m,nr_inodes=6": r"What a gateway keeps at its engine can't be written to {}/subgw-\S+: No space left on device\.",
    "8k": r"What a gateway keeps at its engine can't be written to {}/subgw-\S+: No space left on device\.",
    "1m,nr_inodes=8": r"The directory for copies of .* can't be written to {}/subgw-\S+/g0: No space left on device\.",
}


def fails_with(said: str, size: str, mode: Mode, directory: Path) -> None:
    prefix = (*tiny(directory, size), *AND_SHOW_LEFTOVERS)
    options = ("--mode", mode, "--shards", "2", "--port", "0")
    with simulated_owner(*options, prefix=prefix, environment={"TMPDIR": str(directory)}) as command:
        assert command.wait() == 1, command.log
    lines = command.log.splitlines()
    assert not [line for line in lines if line.startswith("LEFT ")]
    assert re.fullmatch(f"sglang_subgw: {said.format(re.escape(str(directory)))} {re.escape(TO_DO)}", lines[-1]), lines


@pytest.mark.parametrize("size", SIZES)
def test_a_full_disk_ends_the_start_with_what_where_why_and_what_to_do(short_dir: Path, size: str):
    fails_with(SIZES[size], size, Mode.PROCESS, short_dir)


def test_a_disk_that_is_too_full_for_a_shard_s_socket_ends_the_start_so(mode: Mode, short_dir: Path):
    # A subinterpreter needs more before it gets there.
    socket = r"The shard's sockets can't be opened \(ipc://{}/subgw-\S+/g0/shard-\d\.ipc\): No space left on device\."
    copy = r"A copy of \S+\.so, which a shard loads \(\d+ bytes\), can't be written to {}/\S+/g0/images: No space .*\."
    said = copy if mode is Mode.SUBINTERP else socket
    fails_with(rf"Shard \d failed: {said}", "1m,nr_inodes=9", mode, short_dir)


@needs(Mode.SUBINTERP)
def test_a_disk_that_is_too_full_for_a_shard_s_extension_modules_names_the_module_and_its_size(short_dir: Path):
    said = (
        r"Shard \d failed: A copy of tokenizers\S*\.so, which a shard loads \(\d{{7,}} bytes\), can't be written to {}/"
    )
    fails_with(said + r"\S+/g0/images: No space left on device\.", "1m", Mode.SUBINTERP, short_dir)


def no_space(*args: object, **kwargs: object) -> NoReturn:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_seat_that_can_not_be_written_is_an_error_and_is_free_for_the_next(
    runtime_dir: Path, mode: Mode, monkeypatch: pytest.MonkeyPatch
):
    config = GatewayConfig(mode=mode, port=0, log_level="warning", shards=1)
    with SimulatedEngine(runtime_dir) as engine:
        with (
            monkeypatch.context() as patched,
            pytest.raises(StorageError, match=rf"{runtime_dir}: No space left.*{TO_DO}"),
        ):
            patched.setattr(Path, "write_text", no_space)
            ShardGateway(engine, config).start()
        assert list((runtime_dir / "g0").iterdir()) == []
        with ShardGateway(engine, config) as gateway:
            assert gateway.contract.wire.socket_dir == str(runtime_dir / "g0")


def test_a_directory_that_can_not_be_made_is_an_error(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tempfile, "mkdtemp", no_space)
    with pytest.raises(StorageError, match=rf"can't be written to {tempfile.gettempdir()}: No space left.*{TO_DO}"):
        make_runtime_dir()


def test_a_machine_without_any_usable_directory_is_told_so(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: ["/proc/1/none"])
    with pytest.raises(StorageError, match=r"No usable temporary directory found in \['/proc/1/none'\]"):
        make_runtime_dir()


def test_a_temporary_directory_with_too_long_a_path_is_said_to_be_that(tmp_path: Path):
    (long := tmp_path / ("long" * 25)).mkdir()
    with simulated_owner("--engine-only", environment={"TMPDIR": str(long)}) as command:
        assert command.wait() == 1, command.log
    last = command.log.splitlines()[-1]
    assert "AF_UNIX path too long" in last
    assert last.endswith("set TMPDIR to a directory with a shorter path where the engine is started.")
    assert list(long.iterdir()) == []


def test_half_a_copy_of_an_extension_module_is_not_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    origin = tmp_path / "module.so"
    origin.write_bytes(b"x" * 100)
    (copies := tmp_path / "copies").mkdir()
    monkeypatch.setattr(shutil, "copyfile", no_space)
    with pytest.raises(
        StorageError, match=rf"module\.so, which a shard loads \(100 bytes\), .* {copies}: No space left"
    ):
        images._load_copy(str(origin), str(copies))
    assert list(copies.iterdir()) == []


@needs(Mode.SUBINTERP)
def test_copies_that_can_not_be_made_fail_the_gateway_s_start_with_the_reason_everywhere(
    runtime_dir: Path, monkeypatch: pytest.MonkeyPatch
):
    """Also where nothing can be mounted: the directory for the copies isn't one."""
    mkdir = Path.mkdir

    def a_file(self: Path, *args: int, **kwargs: bool) -> None:
        self.touch() if self.name == "images" else mkdir(self, *args, **kwargs)

    monkeypatch.setattr(Path, "mkdir", a_file)
    config = GatewayConfig(mode=Mode.SUBINTERP, port=0, log_level="warning", shards=1)
    said = (
        rf"Shard 0 failed: A copy of \S+\.so, .* can't be written to {runtime_dir}/g0/images: Not a directory\. {TO_DO}"
    )
    with SimulatedEngine(runtime_dir) as engine, pytest.raises(ShardStartError, match=said):
        ShardGateway(engine, config).start()
    assert not list((runtime_dir / "g0").iterdir())
