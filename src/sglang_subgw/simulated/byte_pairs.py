"""What the tokenizers library does with the byte-level tokenizer's file, in plain Python: for builds without it."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Final

_SPACES: Final = frozenset("\t\n\v\f\r\x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000") | {
    chr(c) for c in range(0x2000, 0x200B)
}
_CONTRACTION: Final = re.compile("'(?:s|t|re|ve|m|ll|d)")
_WORD: Final = re.compile(r" ?L+| ?N+| ?P+|[ S]+(?![LNP])|[ S]+")
"""GPT-2's pattern, over a string that has each character's class in its place."""


def words(text: str) -> Iterator[str]:
    """The pieces that GPT-2's pattern cuts a text into."""
    classes = "".join(map(_class, text))
    at = 0
    while at < len(text):
        match = _CONTRACTION.match(text, at) or _WORD.match(classes, at)
        assert match is not None  # every class is in the pattern
        yield text[at : match.end()]
        at = match.end()


def merged(symbols: list[str], ranks: Mapping[tuple[str, str], int]) -> list[str]:
    """Neighbours joined, the lowest rank first, until no pair has a rank."""
    while pairs := [(ranks[pair], i) for i, pair in enumerate(pairwise(symbols)) if pair in ranks]:
        _, i = min(pairs)
        symbols[i : i + 2] = [symbols[i] + symbols[i + 1]]
    return symbols


def _class(char: str) -> str:
    if char == " ":
        return " "
    if char in _SPACES:
        return "S"
    kind = unicodedata.category(char)[0]
    return kind if kind in "LN" else "P"
