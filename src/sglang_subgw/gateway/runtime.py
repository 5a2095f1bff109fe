"""The private directory of one gateway: sockets and scratch files, mode 0700, gone when the gateway is."""

from __future__ import annotations

import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..contract import process_start_time
from ..system.storage import make_directory, own_status

_PREFIX = "subgw-"


def make_runtime_dir() -> Path:
    """A new directory named after this process; unix socket paths in it stay well under their 107 bytes."""
    start = process_start_time(os.getpid()) or 0
    return make_directory(f"{_PREFIX}{os.getpid()}-{start}-")


def remove_runtime_dir(path: Path) -> None:
    """Remove the directory and what is in it. Safe to call twice."""
    shutil.rmtree(path, ignore_errors=True)


@contextmanager
def runtime_dir() -> Iterator[Path]:
    """A context with such a directory."""
    path = make_runtime_dir()
    try:
        yield path
    finally:
        remove_runtime_dir(path)


def stale_dirs() -> list[Path]:
    """This user's directories whose owners are gone."""
    found = []
    for path in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        match = re.fullmatch(rf"{_PREFIX}(\d+)-(\d+)-\w+", path.name)
        if match is None or (status := own_status(path)) is None or not stat.S_ISDIR(status.st_mode):
            continue
        if process_start_time(int(match[1])) != int(match[2]):
            found.append(path)
    return found


def sweep_stale_dirs() -> list[Path]:
    """Remove this user's directories whose owners are gone; returns their paths."""
    removed = stale_dirs()
    for path in removed:
        shutil.rmtree(path, ignore_errors=True)
    return removed
