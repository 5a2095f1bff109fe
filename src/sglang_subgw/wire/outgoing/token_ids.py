"""Token ids: those that need no check, and how the wire has them."""

from __future__ import annotations

from array import array


class TokenIds(list[int]):
    """Ids that the shard's own tokenizer made, all of which the model knows: nobody has changed them since."""

    __slots__ = ()


def packed(ids: list[int]) -> array[int]:
    """The ids as the wire has them: an array of 64-bit integers."""
    found = array("q")
    # For a subclass of list, array("q", ids) takes four times as long: 130 ms for a prompt of 4 MB.
    found.fromlist(ids)
    return found
