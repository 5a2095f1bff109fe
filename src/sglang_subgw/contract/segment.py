"""The shared segment: one POSIX shared-memory object per gateway, the same for every mode.

Layout, little endian: header (1 KiB) · contract (UTF-8 JSON) · one slot per shard.
"""

from __future__ import annotations

import os
import re
import secrets
import stat
import struct
import time
from enum import IntEnum
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import Final, Self

from ..errors import ContractError
from .facts import EngineContract
from .slots import SLOT_BYTES, Slot

MAGIC: Final = b"SGSUBGW\0"
LAYOUT_VERSION: Final = 1
NAME_PREFIX: Final = "sglang_subgw_"
_HEADER: Final = struct.Struct("<8sIIQQQQQII")
"""magic, layout, slots, owner pid, owner start time, size, contract offset, contract length, state, reason length"""
_HEADER_BYTES: Final = 1024
_STATE_AT: Final = _HEADER.size - 8
_REASON_AT: Final = _HEADER.size
_BEAT_AT: Final = _HEADER_BYTES - 8
_REASON_BYTES: Final = _BEAT_AT - _REASON_AT
_NAME: Final = re.compile(rf"{NAME_PREFIX}(\d+)_[0-9a-f]{{8}}")
_SHM_DIR: Final = Path("/dev/shm")


class GatewayState(IntEnum):
    """The gateway's life, as every shard sees it."""

    STARTING = 0
    READY = 1
    DRAINING = 2
    FAILED = 3


class Segment:
    """An open view on a gateway's segment: `publish` it as the owner, `attach` it from anywhere else."""

    def __init__(self, memory: SharedMemory, *, owner: bool) -> None:
        self._memory = memory
        self._owner = owner
        buf = _buffer(memory)
        fields = _HEADER.unpack_from(buf)
        self.name = memory.name.lstrip("/")
        self.owner_pid: int = fields[3]
        self.owner_start: int = fields[4]
        self._contract_at: int = fields[6]
        self._contract_len: int = fields[7]
        slots_at = _aligned(self._contract_at + self._contract_len)
        words = buf[slots_at : slots_at + fields[2] * SLOT_BYTES].cast("Q")
        per_slot = SLOT_BYTES // 8
        self.slots = tuple(Slot(words[i * per_slot : (i + 1) * per_slot]) for i in range(fields[2]))
        words.release()

    @classmethod
    def publish(cls, contract: EngineContract, *, slots: int) -> Self:
        """Create this process's segment, mode 0600; raises ContractError when shared memory can't be had."""
        data = contract.to_json()
        contract_at = _HEADER_BYTES
        size = _aligned(contract_at + len(data)) + slots * SLOT_BYTES
        name = f"{NAME_PREFIX}{os.getpid()}_{secrets.token_hex(4)}"
        try:
            memory = _reserved(name, size)
        except OSError as exc:
            raise ContractError(
                f"No shared memory of {size} bytes for the segment {name}: {exc.strerror}.",
                hint="Free space in /dev/shm, or give the container a larger one.",
            ) from exc
        buf = _buffer(memory)
        buf[contract_at : contract_at + len(data)] = data
        pid = os.getpid()
        started = process_start_time(pid) or 0
        _HEADER.pack_into(
            buf, 0, MAGIC, LAYOUT_VERSION, slots, pid, started, size, contract_at, len(data), GatewayState.STARTING, 0
        )
        return cls(memory, owner=True)

    @classmethod
    def attach(cls, name: str) -> Self:
        """Open another owner's segment by name; raises ContractError for one that isn't ours to read."""
        _check_access(name)
        try:
            memory = SharedMemory(name, track=False)
        except OSError as exc:
            raise ContractError(f"The segment {name!r} can't be opened: {exc.strerror}.") from exc
        if problem := _problem(name, _buffer(memory)):
            memory.close()
            raise ContractError(problem)
        return cls(memory, owner=False)

    def contract(self) -> EngineContract:
        """Read the engine's contract; raises ContractError for one that another version wrote."""
        view = _buffer(self._memory)[self._contract_at : self._contract_at + self._contract_len]
        try:
            return EngineContract.from_json(view)
        except (ValueError, TypeError, KeyError) as exc:
            raise ContractError(
                f"The contract in {self.name!r} can't be read: {exc}.",
                hint="Both sides need the same version of sglang_subgw.",
            ) from exc
        finally:
            view.release()

    @property
    def owner_lives(self) -> bool:
        """Whether the process that published it still runs."""
        return self.owner_start in (0, process_start_time(self.owner_pid))

    @property
    def state(self) -> GatewayState:
        """The gateway's state now."""
        return GatewayState(struct.unpack_from("<I", _buffer(self._memory), _STATE_AT)[0])

    @property
    def reason(self) -> str:
        """Why the gateway failed, "" while it has not."""
        buf = _buffer(self._memory)
        length = struct.unpack_from("<I", buf, _STATE_AT + 4)[0]
        return bytes(buf[_REASON_AT : _REASON_AT + length]).decode(errors="replace")

    def set_state(self, state: GatewayState, reason: str = "") -> None:
        """Publish the gateway's state; the owner only."""
        buf = _buffer(self._memory)
        text = reason.encode()[:_REASON_BYTES]
        buf[_REASON_AT : _REASON_AT + len(text)] = text
        struct.pack_into("<I", buf, _STATE_AT + 4, len(text))
        struct.pack_into("<I", buf, _STATE_AT, state)

    def beat(self) -> None:
        """Note that the gateway's own thread is alive now; the owner only."""
        struct.pack_into("<Q", _buffer(self._memory), _BEAT_AT, time.monotonic_ns())

    @property
    def heartbeat_age(self) -> float | None:
        """Seconds since the gateway's own thread last turned; None where none ever has, as for an engine alone."""
        beat: int = struct.unpack_from("<Q", _buffer(self._memory), _BEAT_AT)[0]
        return max(0.0, (time.monotonic_ns() - beat) / 1e9) if beat else None

    def close(self) -> None:
        """Unmap; the owner also unlinks. Safe to call twice."""
        for slot in self.slots:
            slot.release()
        self.slots = ()
        self._memory.close()
        if self._owner:
            self._owner = False
            self._memory.unlink()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def process_start_time(pid: int) -> int | None:
    """Clock ticks from boot to the start of process `pid` (proc(5), field 22), or None if it has ended."""
    try:
        line = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    fields = line.rpartition(b")")[2].split()
    # One that has ended stays until its parent asks for it; a main thread alone can end before its process does.
    if fields[0] in (b"Z", b"X") and int(fields[17]) <= 1:
        return None
    return int(fields[19])


def segment_names() -> dict[str, int]:
    """The names of all segments on this machine, each with its owner's pid, whoever that is and was."""
    found = ((path.name, _NAME.fullmatch(path.name)) for path in sorted(_SHM_DIR.glob(f"{NAME_PREFIX}*")))
    return {name: int(match[1]) for name, match in found if match is not None}


def stale_segments() -> list[str]:
    """The names of the segments whose owners are gone."""
    return [name for name, pid in segment_names().items() if not _owner_lives(_SHM_DIR / name, pid)]


def sweep_stale() -> list[str]:
    """Unlink the segments of owners that are gone (killed ones can't do it themselves); returns their names."""
    removed = []
    for name in stale_segments():
        try:
            (_SHM_DIR / name).unlink(missing_ok=True)
        except PermissionError:
            # Another user's: theirs to remove.
            continue
        removed.append(name)
    return removed


def _reserved(name: str, size: int) -> SharedMemory:
    memory = SharedMemory(name, create=True, size=size, track=False)
    try:
        fd = os.open(_SHM_DIR / name, os.O_RDWR | os.O_CLOEXEC)
        try:
            # Creating only sets the length: where shared memory is full, the first write would be a SIGBUS.
            os.posix_fallocate(fd, 0, size)
        finally:
            os.close(fd)
    except BaseException:
        memory.close()
        memory.unlink()
        raise
    return memory


def _check_access(name: str) -> None:
    try:
        found = (_SHM_DIR / name).lstat()
    except OSError:
        raise ContractError(
            f"There is no segment named {name!r}.", hint="Is the gateway that published it still running?"
        ) from None
    # What a segment says is believed, so nobody else may have written it.
    if found.st_uid != os.geteuid():
        raise ContractError(f"The segment {name!r} belongs to another user (uid {found.st_uid}).")
    if not stat.S_ISREG(found.st_mode) or found.st_mode & 0o077:
        raise ContractError(f"The segment {name!r} is open to other users (mode {found.st_mode & 0o777:o}).")
    if found.st_size < _HEADER_BYTES:
        raise ContractError(f"{name!r} is not a segment of sglang_subgw.")


def _problem(name: str, buf: memoryview) -> str:
    magic, layout, slots, _, _, size, contract_at, contract_len, state, reason_len = _HEADER.unpack_from(buf)
    if magic != MAGIC:
        return f"{name!r} is not a segment of sglang_subgw."
    if layout != LAYOUT_VERSION:
        return f"{name!r} has layout {layout}, this version reads layout {LAYOUT_VERSION}."
    end = _aligned(contract_at + contract_len) + slots * SLOT_BYTES
    if (
        contract_at < _HEADER_BYTES
        or not end <= size <= len(buf)
        or state not in GatewayState
        or reason_len > _REASON_BYTES
    ):
        return f"The segment {name!r} is damaged."
    return ""


def _owner_lives(path: Path, pid: int) -> bool:
    started = process_start_time(pid)
    if started is None:
        return False
    try:
        head = path.read_bytes()[: _HEADER.size]
    except OSError:
        return True
    if len(head) < _HEADER.size or head[:8] != MAGIC:
        return True
    return bool(_HEADER.unpack(head)[4] in (0, started))


def _buffer(memory: SharedMemory) -> memoryview:
    if memory.buf is None:
        raise ContractError(f"The segment {memory.name} is closed.")
    return memory.buf


def _aligned(offset: int) -> int:
    return (offset + 63) & ~63
