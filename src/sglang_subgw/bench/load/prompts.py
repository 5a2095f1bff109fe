"""Prompts of a wanted length."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Self

from ..engines import TEXT, engine_argv, model_tokenizer
from .workload import Group

_CHARACTERS_PER_TOKEN = 4
"""Of common tokenizers on English text; where the server's own isn't known."""


class Prompts:
    """Makes texts of so many tokens or bytes."""

    def __init__(self, cut: Callable[[int], str]) -> None:
        self._cut = cut

    @classmethod
    def of_model(cls, argv: Sequence[str]) -> Self:
        """By the tokenizer of the model that SGLang is given."""
        return cls(_cut_of_model(tuple(argv)))

    @classmethod
    def by_characters(cls, per_token: int = _CHARACTERS_PER_TOKEN) -> Self:
        """By a guess."""
        return cls(lambda tokens: _repeated(tokens * per_token))

    def make(self, group: Group) -> str:
        """A prompt for the group's requests."""
        return _repeated(group.prompt_bytes) if group.prompt_bytes else self._cut(group.prompt_tokens)


def _repeated(size: int) -> str:
    return (TEXT * (1 + size // len(TEXT)))[:size]


@cache
def _cut_of_model(argv: tuple[str, ...]) -> Callable[[int], str]:
    tokenizer = model_tokenizer(engine_argv(argv))
    ids: list[int] = tokenizer.encode(TEXT, add_special_tokens=False).ids

    def cut(tokens: int) -> str:
        whole, rest = divmod(tokens, len(ids))
        return TEXT * whole + str(tokenizer.decode(ids[:rest]))

    return cut
