"""Seats: a directory inside the engine's for each gateway on it, locked as long as that gateway lives.

A gateway's receive sockets are in its seat. SGLang never forgets the name of a socket that it once sent to, so the
next gateway takes the first free seat, and with it names that the engine knows already. The lock ends with its
process, however that ends: a seat that nobody holds, and that still says whose it was, tells which rids to abort.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import re
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Self

from ...contract import EngineContract, sweep_stale
from ...errors import ContractError
from ...system.storage import writing
from .fence import RouterFence

log = logging.getLogger("sglang_subgw")

_MAX_SEATS: Final = 256
_SEAT: Final = re.compile(r"g\d{1,3}")
_HOLDER: Final = "gateway"
_GATEWAY_ID: Final = re.compile(r"[0-9a-f]{12}")
_SWEEP_SECONDS: Final = 0.5


class Seat:
    """One gateway's seat, from `claim` to `release`."""

    def __init__(self, path: Path, lock: int) -> None:
        self.path = path
        """A private directory for the gateway's sockets and scratch files, empty at first."""
        self._lock = lock

    @classmethod
    def claim(cls, contract: EngineContract, gateway_id: str) -> Self:
        """Take the first free seat; what a gateway that was killed left running from it is aborted.

        Raises ContractError for an engine that is gone, StorageError where nothing can be written.
        """
        directory = Path(contract.wire.runtime_dir)
        with writing("What a gateway keeps at its engine", directory):
            for number in range(_MAX_SEATS):
                path = directory / f"g{number}"
                try:
                    path.mkdir(mode=0o700, exist_ok=True)
                except FileNotFoundError as exc:
                    raise ContractError(f"The engine's directory {directory} is gone: {exc.strerror}.") from exc
                lock = _try_lock(path)
                if lock is None:
                    continue
                seat = cls(path, lock)
                try:
                    _clear(path, contract)
                    (path / _HOLDER).write_text(gateway_id)
                except BaseException:
                    seat.release()
                    raise
                return seat
        raise ContractError(f"All {_MAX_SEATS} seats of gateways at this engine are taken.")

    def release(self) -> None:
        """Remove what is in it and leave it to the next gateway. Safe to call twice."""
        if self._lock >= 0:
            _empty(self.path)
            os.close(self._lock)
            self._lock = -1


def taken(contract: EngineContract) -> int:
    """How many gateways are on the engine now."""
    return sum(not free for _, free in _seats_in_use(contract))


class SeatSweeper(threading.Thread):
    """Looks for gateways of one engine that were killed, and ends what they left running in it."""

    def __init__(self, contract: EngineContract) -> None:
        super().__init__(name="subgw-seats")
        self._contract = contract
        self._end = threading.Event()
        self._suspects: set[Path] = set()

    def run(self) -> None:
        """Look twice a second, until `stop`."""
        while not self._end.wait(_SWEEP_SECONDS):
            try:
                self._sweep()
            except Exception:  # A full disk, a directory that went: the next look may do better.
                log.exception("The seats of this engine's gateways could not be looked at.")

    def stop(self) -> None:
        """End the thread. Safe to call twice."""
        self._end.set()
        if self.is_alive():
            self.join()

    def _sweep(self) -> None:
        abandoned = {path for path, free in _seats_in_use(self._contract) if free}
        # At the second sight: its child processes may have outlived it by a moment, and sent something.
        for path in abandoned & self._suspects:
            with _held(path) as held:
                if held:
                    _clear(path, self._contract)
                    sweep_stale()
        self._suspects = abandoned


def _seats_in_use(contract: EngineContract) -> Iterator[tuple[Path, bool]]:
    """Each seat that says whose it is, and whether nobody holds it."""
    for path in sorted(Path(contract.wire.runtime_dir).glob("g*")):
        if _SEAT.fullmatch(path.name) and (path / _HOLDER).exists():
            with _held(path) as held:
                yield path, held and (path / _HOLDER).exists()


@contextmanager
def _held(path: Path) -> Iterator[bool]:
    try:
        lock = _try_lock(path)
    except FileNotFoundError:
        # The engine ended meanwhile, and its directory with it.
        lock = None
    try:
        yield lock is not None
    finally:
        if lock is not None:
            os.close(lock)


def _try_lock(path: Path) -> int | None:
    """A descriptor that holds the seat's lock, None if another does."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    except BaseException:
        os.close(fd)
        raise
    return fd


def _clear(path: Path, contract: EngineContract) -> None:
    """With the lock held: abort what the holder before left running, and remove its files."""
    try:
        gateway_id = (path / _HOLDER).read_text()
    except FileNotFoundError:
        gateway_id = ""
    # One that was killed before it had written its id has sent nothing yet.
    if _GATEWAY_ID.fullmatch(gateway_id):
        log.warning("Gateway %s was killed: aborting what it left running.", gateway_id)
        fence = RouterFence(contract)
        try:
            fence.abort_gateway(gateway_id)
        finally:
            fence.close()
    _empty(path)


def _empty(path: Path) -> None:
    # The directory itself stays: its lock would lose its meaning with it.
    with contextlib.suppress(FileNotFoundError):
        for entry in path.iterdir():
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry, ignore_errors=True)
            else:
                entry.unlink(missing_ok=True)
