"""The engine's tokenizer in this interpreter: read from its JSON file by the tokenizers library."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

try:
    import tokenizers

    HAVE_TOKENIZERS = True
except ImportError:  # A free-threaded 3.13 has none.
    HAVE_TOKENIZERS = False

type Text = str | Sequence[str]
"""A text, or the two of a pair."""


class LocalTokenizer:
    """Encodes and decodes with the tokenizers library, from any thread."""

    def __init__(self, file: str) -> None:
        self._tokenizer: Any = tokenizers.Tokenizer.from_file(file)
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self.vocab_size = int(self._tokenizer.get_vocab_size(with_added_tokens=True))

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """A text's ids."""
        return self.encode_batch([text], add_special_tokens=add_special_tokens)[0]

    def encode_batch(self, texts: Sequence[str], *, add_special_tokens: bool) -> list[list[int]]:
        """Each text's ids, without the GIL, and without each token's place in the text, a quarter of the work."""
        rows = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=add_special_tokens)
        return [row.ids for row in rows]

    def encode_typed(self, texts: Sequence[Text]) -> list[tuple[list[int], list[int]]]:
        """The ids of each text or pair of texts, with its special tokens, and the type of each id."""
        items: list[Any] = [text if isinstance(text, str) else tuple(text) for text in texts]
        return [(row.ids, row.type_ids) for row in self._tokenizer.encode_batch(items)]

    def decode_batch(self, rows: Sequence[Sequence[int]], *, skip_special_tokens: bool) -> list[str]:
        """Each row's text."""
        texts: list[str] = self._tokenizer.decode_batch(
            [list(row) for row in rows], skip_special_tokens=skip_special_tokens
        )
        return texts

    def pieces(self, tokens: Sequence[int]) -> list[str | None]:
        """The vocabulary's own spelling of each token, None for an unknown one."""
        return [self._tokenizer.id_to_token(token) for token in tokens]

    def id_of(self, piece: str) -> int | None:
        """The token that the vocabulary spells so, None if there is none."""
        token: int | None = self._tokenizer.token_to_id(piece)
        return token

    def close(self) -> None:
        """Nothing is held."""
