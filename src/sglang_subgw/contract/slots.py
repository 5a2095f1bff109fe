"""One slot of the segment per shard: aligned 64-bit words that only that shard writes and anyone reads, and a text."""

from __future__ import annotations

import time
from enum import IntEnum
from typing import Final


class ShardState(IntEnum):
    """A shard's life: STARTING → READY → DRAINING → STOPPED, FAILED from any."""

    EMPTY = 0
    STARTING = 1
    READY = 2
    DRAINING = 3
    STOPPED = 4
    FAILED = 5


class Word(IntEnum):
    """Index of each 64-bit word in a slot; the counters never go back, also over a restart."""

    STATE = 0
    GENERATION = 1
    HEARTBEAT_NS = 2
    """time.monotonic_ns of the shard's event loop, written twice a second."""
    CONNECTIONS = 3
    ACTIVE = 4
    """Sub-requests in the engine now."""
    REQUESTS = 5
    FINISHED = 6
    ABORTED = 7
    FAILED = 8
    PROMPT_TOKENS = 9
    COMPLETION_TOKENS = 10
    CACHED_TOKENS = 11
    MESSAGES = 12
    """Messages received from the engine."""
    CHUNKS = 13
    """Outputs of single sub-requests inside those messages."""
    UNKNOWN_RIDS = 14
    START_US = 15
    """From the shard's creation to ready."""
    MEMORY_BYTES = 16
    """Growth by this shard: private memory of the process, or the growth its start caused."""
    THREAD_ID = 17
    """The shard's native thread id, or its pid."""
    ACCEPTED = 18
    """Connections handed to the shard, written by the gateway's side only."""
    CONNECTIONS_SEEN = 19
    """Handed-over connections the shard took over: ACCEPTED less this is on the way to it."""
    HTTP_REQUESTS = 20
    """HTTP requests in progress."""
    FRESH = 21
    """Connections that have not sent a request yet."""
    UNDECODABLE = 22
    """Frames from the engine that could not be read; each was dropped."""


WORDS_PER_SLOT: Final = 64
SLOT_BYTES: Final = WORDS_PER_SLOT * 8
_FAILURE_AT: Final = 256
"""Where, in bytes, the text of the last failure is: ended by a zero byte or by the slot's end."""


class Slot:
    """A view on one shard's words; use the shard's own slot only from that shard."""

    __slots__ = ("_words",)

    def __init__(self, words: memoryview) -> None:
        self._words = words

    def get(self, word: Word) -> int:
        """The word's value now."""
        value: int = self._words[word]
        return value

    def set(self, word: Word, value: int) -> None:
        """Store one aligned word."""
        self._words[word] = value

    def add(self, word: Word, value: int = 1) -> None:
        """Add to a word that only the caller writes."""
        self._words[word] += value

    def beat(self) -> None:
        """Note that the shard's loop is alive now."""
        self._words[Word.HEARTBEAT_NS] = time.monotonic_ns()

    @property
    def state(self) -> ShardState:
        """The shard's state now."""
        return ShardState(self._words[Word.STATE])

    @property
    def underway(self) -> int:
        """Connections that were handed to the shard, and that it has not taken over yet."""
        return self._words[Word.ACCEPTED] - self._words[Word.CONNECTIONS_SEEN]

    @property
    def load(self) -> tuple[int, int, int]:
        """Requests in progress or about to come, then connections now and ever: the balancer's sort key."""
        w, underway = self._words, self.underway
        # A new connection is about to send a request; an idle kept-alive one may never send another.
        return (w[Word.HTTP_REQUESTS] + w[Word.FRESH] + underway, w[Word.CONNECTIONS] + underway, w[Word.ACCEPTED])

    @property
    def idle_load(self) -> tuple[int, int]:
        """Connections now and on their way, then requests: the sort key for a connection without a request."""
        requests, connections, _ = self.load
        return (connections, requests)

    @property
    def last_failure(self) -> str:
        """Why a life of the shard last ended by itself, "" if none has; over 256 bytes it is cut."""
        with self._words.cast("B") as raw:
            return bytes(raw[_FAILURE_AT:]).partition(b"\0")[0].decode(errors="ignore")

    def note_failure(self, reason: str) -> None:
        """Keep the reason for `last_failure`; the gateway's side only."""
        room = SLOT_BYTES - _FAILURE_AT
        with self._words.cast("B") as raw:
            raw[_FAILURE_AT:] = " ".join(reason.replace("\0", " ").split()).encode()[:room].ljust(room, b"\0")

    def begin(self, generation: int) -> None:
        """Start a new life of the shard: what was open is gone, the counters go on."""
        for word in (Word.CONNECTIONS, Word.ACTIVE, Word.HTTP_REQUESTS, Word.FRESH):
            self._words[word] = 0
        self._words[Word.GENERATION] = generation
        self._words[Word.STATE] = ShardState.STARTING

    def snapshot(self) -> dict[str, int | str]:
        """Every word by its name, lower case, and the last failure."""
        out: dict[str, int | str] = {word.name.lower(): self.get(word) for word in Word}
        out["state"] = self.state.name.lower()
        out["last_failure"] = self.last_failure
        return out

    def release(self) -> None:
        """Give the view back, so that the segment can be closed."""
        self._words.release()
