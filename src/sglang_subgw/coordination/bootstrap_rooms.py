"""Bootstrap rooms in use: none may be used twice at once in an engine, whose schedulers would end by it.

A room is a byte in a file that all workers of the engine lock, each through a descriptor of its own: the kernel gives
the locks of a worker back when it ends, however it does.
"""

from __future__ import annotations

import fcntl
import os
import struct
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from ..errors import EngineUnavailable, RequestRejected

ROOMS_NAME: Final = "rooms"
"""In the engine's runtime directory, whose owner removes it."""

_FLOCK: Final = struct.Struct("hhqqq")
"""type, whence, start, length, pid"""


class BootstrapRooms:
    """Those of one worker; the file is there once one is claimed."""

    def __init__(self, runtime_dir: str) -> None:
        self._path = Path(runtime_dir, ROOMS_NAME)
        self._held: set[int] = set()
        self._file = -1

    def claim(self, rooms: Sequence[int]) -> None:
        """Take all of them, or none: raises RequestRejected when one is in use."""
        taken: list[int] = []
        try:
            for room in rooms:
                if room in self._held or not self._lock(room, fcntl.F_WRLCK):
                    raise RequestRejected(
                        f"bootstrap_room {room} is in use by a request that still runs.", param="bootstrap_room"
                    )
                self._held.add(room)
                taken.append(room)
        except BaseException:
            self.release(taken)
            raise

    def release(self, rooms: Iterable[int]) -> None:
        """Give them back."""
        for room in rooms:
            if room in self._held:
                self._held.remove(room)
                self._lock(room, fcntl.F_UNLCK)

    def close(self) -> None:
        """Give all back. Safe to call twice."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
            self._held.clear()

    def _lock(self, room: int, kind: int) -> bool:
        """False if another worker has it."""
        try:
            if self._file < 0:
                self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            # Not lockf: its locks are the process's, and shards of one process would share them.
            fcntl.fcntl(self._file, fcntl.F_OFD_SETLK, _FLOCK.pack(kind, os.SEEK_SET, room, 1, 0))
        except BlockingIOError:
            return False
        except OSError as exc:
            raise EngineUnavailable(f"The engine's bootstrap rooms can't be kept in {self._path}: {exc}.") from exc
        return True
