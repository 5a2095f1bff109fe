"""The numbers of one rank's batches of KV cache events: which are new, which are missing, which began anew."""

from __future__ import annotations

import enum


class Place(enum.Enum):
    """Where a number stands."""

    NEXT = enum.auto()
    LATER = enum.auto()
    """Those between the expected one and this one are missing."""
    KNOWN = enum.auto()
    """It was read already, among past ones."""
    RESTARTED = enum.auto()
    """The publisher counts anew."""


class Order:
    """What was read of one rank."""

    def __init__(self, expected: int | None = None) -> None:
        self.expected = expected
        """The next number; None while any may come."""
        self._ahead = False

    def begin(self, since: int) -> None:
        """Read from `since` on, wherever the publisher is."""
        self.expected = since

    def read_past(self, following: int) -> None:
        """Past ones were read up to before `following`; some of them may still be on their way here."""
        self.expected, self._ahead = following, True

    def place(self, number: int) -> Place:
        """Where `number` stands, which nothing but itself can follow."""
        if self.expected is None or number == self.expected:
            return Place.NEXT
        if number > self.expected:
            return Place.LATER
        return Place.KNOWN if self._ahead else Place.RESTARTED

    def read(self, following: int) -> None:
        """All was read, or given up, up to before `following`."""
        self.expected, self._ahead = following, False
