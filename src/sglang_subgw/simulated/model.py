"""What the simulated model has loaded; every answer shows the mark of it, for tests to see what they got it from."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import PurePath
from typing import Final, NamedTuple

from .tokenizer import ByteTokenizer

MISSING: Final = "missing"
"""A path with a part of this name leads to nothing."""

PARAMETERS: Final = (
    "model.embed_tokens.weight",
    "model.layers.0.self_attn.q_proj.weight",
    "model.layers.0.mlp.down_proj.weight",
    "model.norm.weight",
    "lm_head.weight",
)
_ROWS: Final = 128
_COLUMNS: Final = 4


class Adapter(NamedTuple):
    """A LoRA adapter that is loaded."""

    name: str
    path: str
    pinned: bool
    mark: str


class LoadedModel:
    """The weights, and the adapters by id."""

    def __init__(self, model_path: str) -> None:
        self.weights = ""
        """The mark of the weights, "" for those that the engine started with."""
        self.adapters: dict[str, Adapter] = {}
        self._first_path = model_path

    def mark(self, lora_id: str | None) -> str:
        """What an answer begins with: "[weights+adapter]", "" for what the engine started with and no adapter."""
        adapter = self.adapters.get(lora_id or "")
        marks = [mark for mark in (self.weights, adapter.mark if adapter else "") if mark]
        return f"[{'+'.join(marks)}]" if marks else ""

    def load_from_disk(self, path: str) -> None:
        """Take the weights of a path; raises OSError for one that leads to nothing."""
        name = path_mark(path)
        self.weights = "" if path == self._first_path else name

    def parameter(self, name: str, rows: int) -> list[list[float]]:
        """The first rows of a parameter; raises KeyError for an unknown one."""
        if name not in PARAMETERS:
            raise KeyError(name)
        seed = hashlib.sha256(f"{self.weights}\0{name}".encode()).digest()
        return [
            [(seed[(row + column) % len(seed)] - 128) / 128 for column in range(_COLUMNS)]
            for row in range(min(rows, _ROWS))
        ]

    def checksums(self, skip: Iterable[str]) -> dict[str, str]:
        """A checksum per parameter, but for those with one of the `skip` texts in their names."""
        skipped = tuple(skip)
        return {name: digest(self.weights, name) for name in PARAMETERS if not any(text in name for text in skipped)}


def path_mark(path: str) -> str:
    """The mark of what a path leads to: its last part; raises OSError for one that leads to nothing."""
    parts = PurePath(path).parts
    if not parts or MISSING in parts:
        raise OSError(f"{path} does not appear to have any weights")
    return parts[-1]


def digest(*parts: object) -> str:
    """8 hex digits of what the parts say."""
    return hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()[:8]


def marked(ids: Iterable[int], mark: Callable[[], str], tokenizer: ByteTokenizer) -> Iterator[int]:
    """The ids, with the mark before the first of them, and again before the first that another mark answers for."""
    shown = ""
    for token in ids:
        if (now := mark()) != shown:
            shown = now
            yield from tokenizer.encode_bytes(now)
        yield token
