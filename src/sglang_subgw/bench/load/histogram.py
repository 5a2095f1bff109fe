"""Times in buckets that grow by 2 %: small enough to send, exact enough to compare, and sums of many are one again."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

_GROWTH: Final = math.log(1.02)
_SMALLEST: Final = 1e-7


class Histogram:
    """Seconds, by bucket."""

    def __init__(self, buckets: Mapping[int, int] | None = None) -> None:
        self.buckets: Counter[int] = Counter(buckets or {})

    @classmethod
    def of(cls, seconds: Iterable[float]) -> Histogram:
        """Of single times."""
        log, growth, smallest = math.log, _GROWTH, _SMALLEST
        return cls(Counter(int(log(max(value, smallest) / smallest) / growth) for value in seconds))

    @classmethod
    def from_json(cls, value: Mapping[str, int]) -> Histogram:
        """What `to_json` made."""
        return cls({int(bucket): count for bucket, count in value.items()})

    def to_json(self) -> dict[str, int]:
        """Buckets by number."""
        return {str(bucket): count for bucket, count in sorted(self.buckets.items())}

    @property
    def count(self) -> int:
        """How many times are in it."""
        return self.buckets.total()

    def add(self, other: Histogram) -> None:
        """Take in another."""
        self.buckets.update(other.buckets)

    def quantile(self, share: float) -> float:
        """The time that `share` of all are not above, in seconds; 0 without any."""
        rank, seen = share * self.count, 0
        for bucket, count in sorted(self.buckets.items()):
            seen += count
            if seen >= rank:
                return _SMALLEST * math.exp((bucket + 0.5) * _GROWTH)
        return 0.0
