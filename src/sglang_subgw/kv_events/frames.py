"""KV cache events on their way from the engine's side to a worker.

A batch has three frames: its rank (4 bytes), its number (8 bytes), and the batch as its publisher packed it. A notice,
with an empty batch, says which number comes next, or nothing before the first. Each subscription is answered with one
of every rank, and one comes every second, so that a subscriber learns of what it lost even when nothing follows.
"""

from __future__ import annotations

from typing import Final

SOCKET_NAME: Final = "kv-events"
"""In the engine's runtime directory."""
NUMBER_BYTES: Final = 8
NOTICE_SECONDS: Final = 1.0
END_OF_REPLAY: Final = b"\xff" * NUMBER_BYTES
"""SGLang's number after the last past batch."""


def rank_frame(rank: int) -> bytes:
    """A batch's first frame, by which one rank alone can be subscribed to."""
    return rank.to_bytes(4)


def number_frame(number: int) -> bytes:
    """A batch's second frame."""
    return number.to_bytes(NUMBER_BYTES)
