"""Token ids that need no check."""

from __future__ import annotations


class TokenIds(list[int]):
    """Ids that the shard's own tokenizer made, all of which the model knows: nobody has changed them since."""

    __slots__ = ()
