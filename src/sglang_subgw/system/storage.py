"""Files that a start can't do without: what fails to be written says where, why, and what to do."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from ..errors import StorageError

FREE_SPACE: Final = "Free space there, or set TMPDIR to another directory where the engine is started."

SHORTER_PATH: Final = (
    "A socket's path has at most 107 bytes: set TMPDIR to a directory with a shorter path where the engine is started."
)


@contextmanager
def writing(what: str, directory: str | Path) -> Iterator[None]:
    """Around what writes `what` somewhere below `directory`; raises StorageError in the place of an OSError."""
    try:
        yield
    except OSError as exc:
        raise StorageError(
            f"{what} can't be written to {directory}: {exc.strerror or exc}.",
            # Without a number it is Python's own, about a socket's path.
            hint=SHORTER_PATH if exc.errno is None else FREE_SPACE,
        ) from exc


def temporary_directory(prefix: str) -> tempfile.TemporaryDirectory[str]:
    """As tempfile's; raises StorageError."""
    with writing("A temporary directory", _place()):
        return tempfile.TemporaryDirectory(prefix=prefix)


def make_directory(prefix: str) -> Path:
    """As tempfile.mkdtemp; raises StorageError."""
    with writing("The directory for sockets", _place()):
        return Path(tempfile.mkdtemp(prefix=prefix))


def own_status(path: Path) -> os.stat_result | None:
    """What lstat says of a file of this user's; None for another's, and for one that has just gone."""
    try:
        status = path.lstat()
    except FileNotFoundError:
        return None
    return status if status.st_uid == os.geteuid() else None


def _place() -> str:
    try:
        return tempfile.gettempdir()
    except FileNotFoundError:
        return "any directory for such files"
