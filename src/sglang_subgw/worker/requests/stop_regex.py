"""How many tokens a stop pattern may span at most: the engine keeps that much of the tail to match against."""

from __future__ import annotations

import re._constants as sre  # type: ignore[import-not-found]
import re._parser as sre_parser  # type: ignore[import-not-found]
from typing import Any, Final

UNBOUNDED: Final = 2**30
"""SGLang's own number for a repeat without an end."""
_LARGEST: Final = 2**62

_ONE_CHARACTER: Final = frozenset({sre.LITERAL, sre.IN, sre.ANY})
_REPEATS: Final = frozenset({sre.MAX_REPEAT, sre.MIN_REPEAT})


def max_length(pattern: str) -> int:
    """SGLang's upper bound for the pattern; raises ValueError for one that isn't a regular expression."""
    try:
        return min(_length(sre_parser.parse(pattern)), _LARGEST)
    except (sre.error, OverflowError, RecursionError) as exc:
        raise ValueError(f"stop_regex {pattern!r} is not a regular expression: {exc}") from None


def _length(tokens: Any) -> int:
    total = 0
    for kind, value in tokens:
        if kind in _ONE_CHARACTER:
            total += 1
        elif kind == sre.SUBPATTERN:
            total += _length(value[3])
        elif kind == sre.BRANCH:
            total += max(_length(branch) for branch in value[1])
        elif kind in _REPEATS:
            _, most, inner = value
            total += UNBOUNDED if most == sre.MAXREPEAT else most * _length(inner)
        elif kind != sre.AT:
            total += UNBOUNDED
    return total
