"""The engine's load snapshots, read from the file that its schedulers keep them in: the same for every shard."""

from __future__ import annotations

import asyncio
import fcntl
import os
import struct
from typing import Any, Final

from ..contract import REQUIRED, FieldList, LoadFacts
from ..errors import EngineUnavailable, WireError
from ..wire.incoming.unpack import unpack

_LOCK_SECONDS: Final = 1.0
"""A scheduler holds the lock for microseconds; one that was stopped within must not stop the shard too."""


class LoadSnapshots:
    """Reads one engine's."""

    def __init__(self, facts: LoadFacts, ranks: int) -> None:
        self._facts = facts
        self._ranks = max(ranks, 1)
        self._header = struct.Struct(facts.header)
        self._slot_header = struct.Struct(facts.slot_header)

    async def read(self, rank: int | None = None) -> list[dict[str, Any]]:
        """The latest snapshot of each rank, or of one; ranks that have not published any are left out.

        Raises EngineUnavailable for a file that can't be read.
        """
        try:
            file = os.open(self._facts.path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return []
        except OSError as exc:
            raise self._unreadable(str(exc.strerror)) from exc
        try:
            await self._lock(file)
            slot_bytes = self._slot_bytes(file)
            ranks = range(self._ranks) if rank is None else (rank,)
            found = [(number, self._payload(file, number, slot_bytes)) for number in ranks]
        finally:
            # The lock goes with it.
            os.close(file)
        return [self._snapshot(number, payload) for number, payload in found if payload]

    async def _lock(self, file: int) -> None:
        try:
            async with asyncio.timeout(_LOCK_SECONDS):
                while True:
                    try:
                        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                    except BlockingIOError:
                        await asyncio.sleep(0.001)
                    else:
                        return
        except TimeoutError:
            raise self._unreadable(f"a scheduler has kept it locked for {_LOCK_SECONDS:g} s") from None

    def _slot_bytes(self, file: int) -> int:
        """Each slot's size, as the file itself tells."""
        facts = self._facts
        data = os.pread(file, self._header.size, 0)
        if len(data) < self._header.size:
            # Its first writer has made it, and not yet written to it.
            return 0
        magic, version, ranks, slot_bytes = self._header.unpack(data)
        found, expected = (magic.decode("latin-1"), version, ranks), (facts.magic, facts.version, self._ranks)
        if found != expected:
            raise self._unreadable(f"it is of another kind (magic, version, ranks: {found}, not {expected})")
        return int(slot_bytes)

    def _payload(self, file: int, rank: int, slot_bytes: int) -> bytes:
        """One rank's snapshot, empty if there is none."""
        if not slot_bytes:
            return b""
        slot = os.pread(file, slot_bytes, self._header.size + rank * slot_bytes)
        if len(slot) < slot_bytes:
            return b""
        (length,) = self._slot_header.unpack_from(slot)
        return slot[self._slot_header.size :][:length]

    def _snapshot(self, rank: int, payload: bytes) -> dict[str, Any]:
        facts = self._facts
        try:
            raw: dict[str, Any] = unpack(payload)
            values = {name: raw.get(name, default) for name, default in facts.fields}
            sections = {name: _section(fields, values.pop(name)) for name, fields in facts.sections.items()}
        except (WireError, AttributeError, TypeError) as exc:
            raise self._unreadable(f"rank {rank}'s snapshot is broken: {exc}") from exc
        return values | {name: section for name, section in sections.items() if section is not None}

    def _unreadable(self, reason: str) -> EngineUnavailable:
        return EngineUnavailable(f"The engine's load snapshots in {self._facts.path} can't be read: {reason}.")


def _section(fields: FieldList, row: list[Any] | None) -> dict[str, Any] | None:
    if row is None:
        return None
    values = dict(fields) | dict(zip((name for name, _ in fields), row, strict=False))
    if missing := [name for name, value in values.items() if value == REQUIRED]:
        raise WireError(f"it has no {', '.join(missing)}")
    return values
