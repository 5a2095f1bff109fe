"""Logprobs of one sample: raw columns as they arrive, SGLang's triples when an answer asks for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

type TokenTexts = Callable[[Sequence[int]], list[str]]
type Triple = tuple[float | None, int, str | None]
"""(logprob, token id, text or None)"""

_SIDES = ("input", "output")


def column(columns: dict[str, Any], name: str, row: int) -> Any:
    """A column's value for one row; None where the column is missing, None or too short."""
    try:
        return columns[name][row]
    except (KeyError, IndexError, TypeError):
        return None


class Logprobs:
    """What one sample asked for, and got so far."""

    __slots__ = ("_raw", "_rows", "_texts", "_token_ids", "_tokens", "_top")

    def __init__(self, *, top: int = 0, token_ids: bool = False, texts: TokenTexts | None = None) -> None:
        self._top = top > 0
        self._token_ids = token_ids
        self._texts = texts
        self._raw: dict[str, tuple[list[Any], list[Any]]] = {}
        for side in _SIDES:
            self._raw[f"{side}_token_logprobs"] = ([], [])
            if self._top:
                self._raw[f"{side}_top_logprobs"] = ([], [])
            if token_ids:
                self._raw[f"{side}_token_ids_logprobs"] = ([], [])
        self._tokens: dict[str, list[Triple]] = {f"{side}_token_logprobs": [] for side in _SIDES}
        self._rows: dict[str, list[list[Triple] | None]] = {
            name: [] for name in self._raw if not name.endswith("_token_logprobs")
        }

    def extend(self, columns: dict[str, Any], row: int) -> None:
        """Add what one message holds for this sample."""
        for name, (values, ids) in self._raw.items():
            new = column(columns, f"{name}_val", row)
            if new:
                values.extend(new)
                ids.extend(column(columns, f"{name}_idx", row) or [None] * len(new))

    def add_to(self, meta: dict[str, Any]) -> None:
        """Put the keys of SGLang's meta_info for them into `meta`, in SGLang's order."""
        for name, done in self._tokens.items():
            values, ids = self._raw[name]
            if len(values) > len(done):
                done.extend(self._triples(values[len(done) :], ids[len(done) :]))
            meta[name] = done
        meta["output_token_logprobs_length"] = len(self._tokens["output_token_logprobs"])
        for kind in ("top_logprobs", "token_ids_logprobs"):
            for side in _SIDES:
                name = f"{side}_{kind}"
                if name not in self._rows:
                    continue
                rows = self._rows[name]
                values, ids = self._raw[name]
                for at in range(len(rows), len(values)):
                    rows.append(self._triples(values[at], ids[at]) if values[at] else None)
                meta[name] = rows

    def _triples(self, values: Sequence[Any], ids: Sequence[Any]) -> list[Triple]:
        texts = self._texts(ids) if self._texts is not None else [None] * len(ids)
        return list(zip(values, ids, texts, strict=False))
