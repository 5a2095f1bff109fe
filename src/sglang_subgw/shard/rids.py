"""Request ids of the gateway's own: fixed width, unique engine-wide, none a prefix of another.

The scheduler aborts by prefix, so the prefix of one shard's life ends all that it left running, and nothing else.
"""

from __future__ import annotations

from typing import Final

ENGINE_DIGITS: Final = 12
SHARD_DIGITS: Final = 3
GENERATION_DIGITS: Final = 5
COUNTER_DIGITS: Final = 12
RID_LENGTH: Final = ENGINE_DIGITS + SHARD_DIGITS + GENERATION_DIGITS + COUNTER_DIGITS
HEALTH_CHECK: Final = "HEALTH_CHECK"
"""A busy scheduler drops requests whose rid starts so, and only tells that it lives."""


def prefix(engine_id: str, shard: int, generation: int) -> str:
    """What all rids of one shard's life start with; raises ValueError for what doesn't fit the width."""
    if len(engine_id) != ENGINE_DIGITS:
        raise ValueError(f"an engine id has {ENGINE_DIGITS} hex digits, not {engine_id!r}")
    if not 0 <= shard < 16**SHARD_DIGITS:
        raise ValueError(f"shard {shard} does not fit into {SHARD_DIGITS} hex digits")
    return f"{engine_id}{shard:0{SHARD_DIGITS}x}{generation % 16**GENERATION_DIGITS:0{GENERATION_DIGITS}x}"


class Rids:
    """Hands out one shard's rids."""

    def __init__(self, engine_id: str, shard: int, generation: int) -> None:
        self.prefix = prefix(engine_id, shard, generation)
        self._count = 0

    def next(self) -> str:
        """A new rid."""
        self._count += 1
        return f"{self.prefix}{self._count:0{COUNTER_DIGITS}x}"

    def next_health(self) -> str:
        """A new rid for a health check."""
        return f"{HEALTH_CHECK}_{self.next()}"
