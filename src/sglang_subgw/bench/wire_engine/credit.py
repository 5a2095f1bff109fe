"""How far each shard has come, from its slot: what keeps a wire engine from running away from it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from ...contract import Segment, Slot, Word, segment_names
from ...errors import BenchError, ContractError

_ENDPOINT: Final = re.compile(r"ipc://(.+)/shard-(\d+)\.ipc")


class Credit:
    """Looks shards up by their endpoints; `close` gives their segments back."""

    def __init__(self) -> None:
        self._segments: dict[str, Segment] = {}
        self._left: list[Segment] = []

    def slot(self, endpoint: str) -> Slot:
        """The slot of the shard that receives there; raises BenchError when no gateway has it."""
        match = _ENDPOINT.fullmatch(endpoint)
        if match is None:
            raise BenchError(f"{endpoint!r} is no shard's endpoint.")
        directory, index = match[1], int(match[2])
        if directory not in self._segments:
            self._look()
        if directory not in self._segments:
            raise BenchError(f"No gateway has the shard at {endpoint!r}.")
        return self._segments[directory].slots[index]

    def forget(self, endpoint: str) -> None:
        """Another gateway may have taken over the endpoint."""
        if (match := _ENDPOINT.fullmatch(endpoint)) is not None and match[1] in self._segments:
            # Slots of it are still in use.
            self._left.append(self._segments.pop(match[1]))

    def close(self) -> None:
        """Unmap what was looked at."""
        for segment in (*self._segments.values(), *self._left):
            segment.close()
        self._segments.clear()
        self._left.clear()

    def _look(self) -> None:
        known = {segment.name for segment in self._segments.values()}
        for name in segment_names():
            if name in known:
                continue
            try:
                segment = Segment.attach(name)
            except ContractError:
                # Another user's, or gone since it was listed.
                continue
            try:
                directory = str(Path(segment.contract().wire.socket_dir))
            except ContractError:
                segment.close()
                continue
            if segment.slots and directory not in self._segments:
                self._segments[directory] = segment
            else:
                segment.close()


def messages_seen(slot: Slot) -> int:
    """How many messages of the engine the shard has taken in."""
    return slot.get(Word.MESSAGES)
