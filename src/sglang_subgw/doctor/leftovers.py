"""What killed processes left behind: their segments, their directories and the sockets in those."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ..contract import stale_segments
from ..engine.launch import shared_memory
from ..gateway.runtime import stale_dirs
from ..system.storage import own_status

_SHM_DIR: Final = Path("/dev/shm")


@dataclass(frozen=True, slots=True)
class Leftover:
    """One thing of a dead owner's."""

    kind: str
    """"segment", "directory", or "sglang segment" (SGLang's own, of a dead engine)."""
    path: Path
    bytes: int
    sockets: int = 0
    """Unix sockets in the directory."""

    def remove(self) -> bool:
        """Remove it; False when that isn't permitted."""
        try:
            if self.path.is_dir():
                shutil.rmtree(self.path)
            else:
                self.path.unlink()
        except FileNotFoundError:
            return True
        except OSError:
            return False
        return True


def leftovers() -> list[Leftover]:
    """All of this user's."""
    segments = _own(_SHM_DIR / name for name in stale_segments())
    found = [Leftover("segment", path, status.st_size) for path, status in segments]
    directories = stale_dirs()
    theirs = _own(shared_memory.stale(directories))
    found += [Leftover("sglang segment", path, status.st_size) for path, status in theirs]
    for directory in directories:
        files = [status for _, status in _own(directory.rglob("*"))]
        sockets = sum(stat.S_ISSOCK(file.st_mode) for file in files)
        found.append(Leftover("directory", directory, sum(file.st_size for file in files), sockets))
    return found


def _own(paths: Iterable[Path]) -> list[tuple[Path, os.stat_result]]:
    """With what they are."""
    return [(path, status) for path in paths if (status := own_status(path)) is not None]
