"""The private runtime directory: mode, length, removal, and the sweep of dead owners'."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from sglang_subgw.gateway.runtime import make_runtime_dir, remove_runtime_dir, sweep_stale_dirs
from sglang_subgw.system.storage import own_status


@pytest.fixture(autouse=True)
def own_temp_dir(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def test_it_is_private_and_goes_with_its_content():
    path = make_runtime_dir()
    assert stat.S_IMODE(path.stat().st_mode) == 0o700
    (path / "file").write_text("x")
    remove_runtime_dir(path)
    assert not path.exists()
    remove_runtime_dir(path)


def test_the_sweep_takes_dead_owners_only(tmp_path):
    made = subprocess.run(
        [sys.executable, "-c", "from sglang_subgw.gateway.runtime import *; print(make_runtime_dir())"],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    ).stdout.strip()
    mine = make_runtime_dir()
    (tmp_path / "subgw-something-else").mkdir()
    assert [str(path) for path in sweep_stale_dirs()] == [made]
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([mine.name, "subgw-something-else"])


def test_the_sweep_meets_directories_that_go_meanwhile_and_what_is_none(tmp_path, monkeypatch):
    (tmp_path / "subgw-1-2-file").write_text("")
    (tmp_path / "subgw-1-2-link").symlink_to(tmp_path)
    listed = [tmp_path / "subgw-1-2-gone", *tmp_path.iterdir()]
    monkeypatch.setattr(Path, "glob", lambda self, pattern: iter(listed))
    assert sweep_stale_dirs() == []


def test_only_what_is_there_and_this_user_s_has_a_status(tmp_path, monkeypatch):
    assert own_status(tmp_path) == tmp_path.lstat()
    assert own_status(tmp_path / "gone") is None
    monkeypatch.setattr(os, "geteuid", lambda: tmp_path.lstat().st_uid + 1)
    assert own_status(tmp_path) is None
