"""Tiny file systems that only one command sees: what happens when a disk, or shared memory, is full."""

from __future__ import annotations

import functools
import shutil
import subprocess
from pathlib import Path
from typing import Final

import pytest

_SCRIPT: Final = 'mount -t tmpfs -o "size=$1,mode=1777" tmpfs "$2" && shift 2 && exec "$@"'


def tiny(directory: Path, size: str) -> tuple[str, ...]:
    """Put this before a command: it sees an empty file system of `size` at `directory`, and nobody else does."""
    unshare = _unshare()
    if not unshare:
        pytest.skip("this machine lets nobody mount, not even in a namespace")
    return (*unshare, "sh", "-c", _SCRIPT, "sh", size, str(directory))


@functools.cache
def _unshare() -> tuple[str, ...]:
    found = shutil.which("unshare")
    for options in (("--mount",), ("--map-root-user", "--mount")):
        trial = ("sh", "-c", "mount -t tmpfs -o size=4k tmpfs /mnt")
        if found and subprocess.run([found, *options, *trial], stderr=subprocess.DEVNULL, check=False).returncode == 0:
            return (found, *options)
    return ()
