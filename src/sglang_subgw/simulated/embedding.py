"""Embeddings inside the simulated scheduler: answered by a request's first step, with numbers made of its ids."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from .generation import SimulatedGeneration
from .tokenizer import ByteTokenizer
from .wire.structs import StandIn, StandInTimeStats, make
from .wire.tensors import Tensor

KIND: Final = "TokenizedEmbeddingReqInput"
BATCH_KIND: Final = "BatchTokenizedEmbeddingReqInput"
WIDTH: Final = 6
"""Numbers in an embedding."""


class SimulatedEmbedding(SimulatedGeneration):
    """A request's state, and what it has to send."""

    def __init__(self, request: StandIn, tokenizer: ByteTokenizer) -> None:
        super().__init__(request, iter(()), tokenizer, limit=0)

    def step(self) -> None:
        self.finish_reason = self.to_finish or {"type": "length", "length": 0}
        self.to_finish = None

    def due(self) -> bool:
        return self.finish_reason is not None


def embedding_of(ids: Sequence[int], types: Sequence[int] | None = None, width: int = WIDTH) -> list[float]:
    """The embedding of some ids, exact in binary: each id counts by its place and its part of a pair."""
    # A real engine ends, too, where ids and types are not of one number.
    typed = list(zip(ids, types or [0] * len(ids), strict=True))
    sums = [
        sum((place + 1) * token * (row + 1) + kind * row for place, (token, kind) in enumerate(typed))
        for row in range(width)
    ]
    return [(total % 257 - 128) / 64 for total in sums]


def embedding_messages(due: list[SimulatedEmbedding]) -> Iterator[tuple[str, StandIn]]:
    """(worker endpoint, message) pairs: SGLang sends each embedding by itself."""
    for embedding in due:
        vectors, is_one = _vectors(embedding.request)
        if (width := embedding.request.dimensions) is not None:
            vectors = [vector[:width] for vector in vectors]
        states = [[number / 2 for number in vector] for vector in vectors]
        wanted = embedding.request.return_pooled_hidden_states
        fields: dict[str, Any] = {
            "rids": [embedding.rid],
            "finished_reasons": [embedding.finish_reason],
            "embeddings": [vectors[0] if is_one else vectors],
            "prompt_tokens": [len(embedding.prompt)],
            "cached_tokens": [embedding.cached_tokens],
            "placeholder_tokens_idx": None,
            "placeholder_tokens_val": None,
            "retraction_counts": [embedding.retractions],
            "cached_tokens_details": [None],
            "time_stats": [StandInTimeStats()],
            "pooled_hidden_states": [Tensor(states[0] if is_one else states)] if wanted else None,
        }
        yield embedding.worker, make("BatchEmbeddingOutput", **fields)


def _vectors(request: StandIn) -> tuple[list[list[float]], bool]:
    """A vector for each place that is asked for, or the one of the whole prompt."""
    ids = list(request.input_ids)
    if request.token_indices_to_pool is not None:
        return [embedding_of(ids[: at + 1]) for at in request.token_indices_to_pool], False
    if request.multi_item_delimiter_indices is not None:
        return [embedding_of(ids[:at]) for at in request.multi_item_delimiter_indices], False
    return [embedding_of(ids, request.token_type_ids)], True
