"""One running request for an embedding and what the engine has sent for it."""

from __future__ import annotations

from typing import Any

from .logprobs import column
from .meta import embedding_meta
from .sample import Sample


class EmbeddingSample(Sample):
    """A sub-request whose answer is `embedding`: a vector, or whatever else the model's head gives.

    What the scheduler dropped before it ran is answered as SGLang does: by an empty text.
    """

    __slots__ = ()

    def _answer(self, text: str, ids: list[int], since: int | None = None) -> dict[str, Any]:
        if self._abort is not None or self._columns is None:
            return super()._answer(text, ids, since)
        columns, row = self._columns, self._row
        out: dict[str, Any] = {
            "embedding": column(columns, "embeddings", row),
            "meta_info": self._stamped(embedding_meta(self, self._facts, columns, row)),
        }
        states = columns.get("pooled_hidden_states")
        if states is not None and len(states) == 1 < len(columns["rids"]):
            # One stacked tensor of all rows.
            states = states[0]
        if states is not None and states[row] is not None:
            out["pooled_hidden_state"] = states[row]
        return out
