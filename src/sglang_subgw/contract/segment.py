"""The shared segment: one POSIX shared-memory object per gateway, the same for every mode.

Layout, little endian: header (1 KiB) · contract (UTF-8 JSON) · one slot per shard.
"""

from __future__ import annotations

import os
import re
import secrets
import struct
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
_REASON_BYTES: Final = _HEADER_BYTES - _REASON_AT
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
            memory = SharedMemory(name, create=True, size=size, track=False)
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
        try:
            memory = SharedMemory(name, track=False)
        except FileNotFoundError:
            raise ContractError(
                f"There is no segment named {name!r}.", hint="Is the gateway that published it still running?"
            ) from None
        buf = _buffer(memory)
        problem = ""
        if memory.size < _HEADER.size or bytes(buf[:8]) != MAGIC:
            problem = f"{name!r} is not a segment of sglang_subgw."
        elif (layout := _HEADER.unpack_from(buf)[1]) != LAYOUT_VERSION:
            problem = f"{name!r} has layout {layout}, this version reads layout {LAYOUT_VERSION}."
        if problem:
            memory.close()
            raise ContractError(problem)
        return cls(memory, owner=False)

    def contract(self) -> EngineContract:
        """Read the engine's contract."""
        view = _buffer(self._memory)[self._contract_at : self._contract_at + self._contract_len]
        try:
            return EngineContract.from_json(view)
        finally:
            view.release()

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
    """Clock ticks from boot to the start of process `pid` (proc(5), field 22), or None if there is none."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    return int(stat.rpartition(b")")[2].split()[19])


def sweep_stale() -> list[str]:
    """Unlink the segments of owners that are gone (killed ones can't do it themselves); returns their names."""
    removed = []
    for path in sorted(_SHM_DIR.glob(f"{NAME_PREFIX}*")):
        match = re.fullmatch(rf"{NAME_PREFIX}(\d+)_[0-9a-f]{{8}}", path.name)
        if match is None or _owner_lives(path, int(match[1])):
            continue
        path.unlink(missing_ok=True)
        removed.append(path.name)
    return removed


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
