"""The prompts that SGLang scores a query and its items by, and the positions in them at which scores are read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from ...contract import EngineContract
from ...errors import RequestRejected
from ...tokenization.tokenizer import ShardTokenizer
from .request import ScoreRequest

DELIMITER: Final = 9999
"""SGLang's token between the items of one prompt: it only holds their places, positions are counted."""

type Ids = list[int]


@dataclass(slots=True)
class ScorePrompts:
    """A batch of prompts, as texts or as ids: one per item, or one that holds all items."""

    texts: list[str] | None = None
    input_ids: list[Ids] | None = None
    delimiters: list[int] | None = None
    """The places before, between and after the items of the one prompt."""
    positions: list[list[int]] | None = None
    """In each prompt, where the extraction token stands."""
    counts: list[int] | None = None
    """How many of these belong to each item of the one prompt."""


async def build_prompts(request: ScoreRequest, contract: EngineContract, tokenizer: ShardTokenizer) -> ScorePrompts:
    """By SGLang's rules; raises RequestRejected for kinds of query and items that don't go together."""
    return await _Building(request, contract.features.enable_mis, tokenizer).prompts()


class _Building:
    def __init__(self, request: ScoreRequest, together: bool, tokenizer: ShardTokenizer) -> None:
        items = request.items or []
        self._items: Sequence[str | Ids] = [items] if isinstance(items, str) else items
        self._of_ids = isinstance(self._items[0], list)
        self._query: str | Ids = request.query if request.query is not None else [] if self._of_ids else ""
        self._item_first = request.item_first
        self._token = request.score_extraction_token_id
        self._together = together
        self._tokenizer = tokenizer

    async def prompts(self) -> ScorePrompts:
        if self._token is not None:
            return self._with_positions(self._token, await self._extraction_prompts(self._token))
        if isinstance(self._query, str) and (self._together or not self._of_ids):
            return await self._text_prompts(self._query)
        if isinstance(self._query, list) and self._of_ids:
            return self._id_prompts(self._query, self._id_items())
        raise RequestRejected("Invalid combination of query/items types for score_request.", param="items")

    async def _text_prompts(self, query: str) -> ScorePrompts:
        if self._together:
            return self._id_prompts(*await self._encode())
        pairs = [(item, query) if self._item_first else (query, item) for item in self._items]
        return ScorePrompts(texts=[f"{first}{second}" for first, second in pairs])

    async def _extraction_prompts(self, token: int) -> ScorePrompts:
        if isinstance(self._query, str) and not self._together:
            if self._of_ids:
                raise RequestRejected(
                    "query and items must both be text or both be token IDs when score_extraction_token_id is set.",
                    param="items",
                )
            if self._query:
                _check_prefix(self._tokenizer.encode(self._query), token)
            return ScorePrompts(
                input_ids=await self._tokenizer.encode_all([f"{self._query}{item}" for item in self._items])
            )
        query, items = await self._encode()
        if not self._together:
            _check_prefix(query, token)
        return self._id_prompts(query, items)

    async def _encode(self) -> tuple[Ids, list[Ids]]:
        texts = [item for item in self._items if isinstance(item, str)]
        # Before texts, an empty list is an empty text, as SGLang has it.
        query = "" if self._together and texts and not self._query else self._query
        # The items continue the query: only that gets special tokens.
        ids = query if isinstance(query, list) else (await self._tokenizer.encode_all([query]))[0]
        if not texts:
            return ids, self._id_items()
        return ids, await self._tokenizer.encode_all(texts, add_special_tokens=False)

    def _id_items(self) -> list[Ids]:
        return [item for item in self._items if isinstance(item, list)]

    def _id_prompts(self, query: Ids, items: list[Ids]) -> ScorePrompts:
        if not self._together:
            return ScorePrompts(input_ids=[item + query if self._item_first else query + item for item in items])
        sequence, delimiters = list(query), []
        for item in items:
            delimiters.append(len(sequence))
            sequence += [DELIMITER, *item]
        delimiters.append(len(sequence))
        sequence.append(DELIMITER)
        return ScorePrompts(input_ids=[sequence], delimiters=delimiters)

    def _with_positions(self, token: int, prompts: ScorePrompts) -> ScorePrompts:
        assert prompts.input_ids is not None
        prompts.positions = [[at for at, one in enumerate(ids) if one == token] for ids in prompts.input_ids]
        if not all(prompts.positions):
            raise RequestRejected(
                f"No score-extraction token (id={token}) found in one or more input(s); the client must render one "
                "per candidate.",
                param="items",
            )
        if prompts.delimiters is not None:
            prompts.counts = _counts(prompts.delimiters, prompts.positions[0])
        return prompts


def _check_prefix(query: Ids, token: int) -> None:
    if token in query:
        raise RequestRejected(
            "score-extraction token found in the shared query prefix; it must appear only within items, one per "
            "candidate.",
            param="query",
        )


def _counts(delimiters: list[int], positions: list[int]) -> list[int]:
    counts = [sum(low < at < high for at in positions) for low, high in pairwise(delimiters)]
    if sum(counts) != len(positions):
        raise RequestRejected(
            "score-extraction token found outside the candidate items (e.g. in the shared query prefix) under "
            "--enable-mis multi-item scoring; it must appear only within items, one per candidate.",
            param="query",
        )
    if not all(counts):
        raise RequestRejected(
            "Each item (candidate set) must contain at least one score-extraction token under --enable-mis "
            "multi-item scoring.",
            param="items",
        )
    return counts
