"""Request ids of the gateway's own: fixed width, unique engine-wide, none a prefix of another.

The scheduler aborts by prefix, so the prefix of one shard's life ends all that it left running, and nothing else; so
does the id of a gateway, which starts all of its rids.
"""

from __future__ import annotations

from typing import Final

GATEWAY_DIGITS: Final = 12
SHARD_DIGITS: Final = 3
GENERATION_DIGITS: Final = 5
COUNTER_DIGITS: Final = 12
RID_LENGTH: Final = GATEWAY_DIGITS + SHARD_DIGITS + GENERATION_DIGITS + COUNTER_DIGITS
HEALTH_CHECK: Final = "HEALTH_CHECK"
"""A busy scheduler drops requests whose rid starts so, and only tells that it lives."""


def prefix(gateway_id: str, shard: int, generation: int) -> str:
    """What all rids of one shard's life start with; raises ValueError for what doesn't fit the width."""
    if len(gateway_id) != GATEWAY_DIGITS:
        raise ValueError(f"a gateway id has {GATEWAY_DIGITS} hex digits, not {gateway_id!r}")
    if not 0 <= shard < 16**SHARD_DIGITS:
        raise ValueError(f"shard {shard} does not fit into {SHARD_DIGITS} hex digits")
    return f"{gateway_id}{shard:0{SHARD_DIGITS}x}{generation % 16**GENERATION_DIGITS:0{GENERATION_DIGITS}x}"


class Rids:
    """Hands out one shard's rids."""

    def __init__(self, gateway_id: str, shard: int, generation: int) -> None:
        self.prefix = prefix(gateway_id, shard, generation)
        self._count = 0

    def next(self) -> str:
        """A new rid."""
        self._count += 1
        return f"{self.prefix}{self._count:0{COUNTER_DIGITS}x}"

    def next_health(self) -> str:
        """A new rid for a health check."""
        return f"{HEALTH_CHECK}_{self.next()}"
