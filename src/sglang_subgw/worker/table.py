"""The samples of one shard that the engine works on, by the engine's rids and by the clients' names."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence

from ..contract import Slot, Word
from ..coordination.bootstrap_rooms import BootstrapRooms
from ..errors import RequestRejected
from .answers.sample import Sample


class Names:
    """The client's names, and the bootstrap rooms, that one request holds from its arrival to its last sample's end."""

    __slots__ = ("_held", "names", "rooms", "samples")

    def __init__(self, names: list[str], rooms: Sequence[int]) -> None:
        self.names = names
        self.rooms = rooms
        self.samples: dict[str, list[Sample]] = {name: [] for name in names}
        self._held = 1

    def hold(self) -> None:
        """One more sample keeps the names."""
        self._held += 1

    def drop(self) -> bool:
        """One less; True when it was the last."""
        self._held -= 1
        return self._held == 0


class SampleTable:
    """Running samples; keeps the shard's counters of them."""

    def __init__(self, slot: Slot, rooms: BootstrapRooms) -> None:
        self._slot = slot
        self._rooms = rooms
        self.on_removed: Callable[[Sample], None] = lambda sample: None
        """Called with each sample that has ended."""
        self._emptied: asyncio.Event | None = None
        self._samples: dict[str, Sample] = {}
        self._named: dict[str, Names] = {}
        self._names_of: dict[str, Names] = {}
        self.get = self._samples.get

    def __len__(self) -> int:
        return len(self._samples)

    def __iter__(self) -> Iterator[Sample]:
        return iter(list(self._samples.values()))

    def claim(self, names: list[str], rooms: Sequence[int] = ()) -> Names:
        """Reserve a request's names and rooms; raises RequestRejected when one is in use."""
        for name in names:
            if name in self._named:
                raise RequestRejected(f"Duplicate request ID detected: {name}", param="rid")
        self._rooms.claim(rooms)
        claimed = Names(names, rooms)
        for name in names:
            self._named[name] = claimed
        return claimed

    def release(self, claimed: Names) -> None:
        """The request itself needs its names no longer; they go with its last sample."""
        if claimed.drop():
            for name in claimed.names:
                del self._named[name]
            self._rooms.release(claimed.rooms)

    def add(self, sample: Sample, claimed: Names, names: list[str]) -> None:
        """A sample that is about to be sent, under those of the claimed names that mean it."""
        self._samples[sample.rid] = sample
        self._names_of[sample.rid] = claimed
        claimed.hold()
        for name in names:
            claimed.samples[name].append(sample)
        self._slot.set(Word.ACTIVE, len(self._samples))
        if not sample.warm_up:
            self._slot.add(Word.REQUESTS)

    def remove(self, sample: Sample) -> None:
        """A sample that has ended; counts how."""
        if self._samples.pop(sample.rid, None) is None:
            return
        self.release(self._names_of.pop(sample.rid))
        self.on_removed(sample)
        if self._emptied is not None and not self._samples:
            self._emptied.set()
            self._emptied = None
        slot = self._slot
        slot.set(Word.ACTIVE, len(self._samples))
        if sample.warm_up:
            return
        if sample.error is not None:
            slot.add(Word.FAILED)
        elif sample.finish_reason is not None and sample.finish_reason.get("type") == "abort":
            slot.add(Word.ABORTED)
        else:
            slot.add(Word.FINISHED)
        slot.add(Word.PROMPT_TOKENS, sample.prompt_tokens)
        slot.add(Word.COMPLETION_TOKENS, sample.completion_tokens)
        slot.add(Word.CACHED_TOKENS, sample.cached_tokens)

    async def emptied(self) -> None:
        """Until no sample runs."""
        while self._samples:
            self._emptied = self._emptied or asyncio.Event()
            await self._emptied.wait()

    def find(self, name: str) -> list[Sample]:
        """The running samples that a client's name, or a rid of the engine's, means."""
        if (sample := self._samples.get(name)) is not None:
            return [sample]
        claimed = self._named.get(name)
        return [] if claimed is None else [sample for sample in claimed.samples[name] if not sample.finished]

    def knows(self, name: str) -> bool:
        """The name is one of a request here, sent or not."""
        return name in self._samples or name in self._named
