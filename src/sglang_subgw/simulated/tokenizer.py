"""A byte-level tokenizer made in code: one token per byte, a few merged words, a few special tokens.

Ids 0..255 are the bytes themselves, so any text (and any broken piece of one) has ids, without a library or a download.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from ..system.storage import writing
from .byte_pairs import merged, words

SPECIAL_TOKENS: Final = ("<|bos|>", "<|eos|>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>")
_SPECIAL: Final = re.compile(f"({'|'.join(map(re.escape, SPECIAL_TOKENS))})")
_WORDS: Final = (" the", " and", " that", "ing", "tion", "hello", " world", " stream", " token", "한", "é")

CHAT_TEMPLATE: Final = (
    "{%- for message in messages %}{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{ '<|assistant|>' }}{%- endif %}"
)


class ByteTokenizer:
    """Text to ids and back; `save` writes the same as a `tokenizers` file."""

    def __init__(self) -> None:
        self._alphabet = alphabet = _byte_alphabet()
        self._pieces: list[bytes] = [bytes([byte]) for byte in range(256)]
        self._vocab = {alphabet[byte]: byte for byte in range(256)}
        self._merges: list[tuple[str, str]] = []
        for word in _WORDS:
            self._merge_word([alphabet[byte] for byte in word.encode()], alphabet)
        first_special = len(self._pieces)
        self.special_ids = {token: first_special + i for i, token in enumerate(SPECIAL_TOKENS)}
        self._special_names = {id_: token for token, id_ in self.special_ids.items()}
        self.eos_token_id = self.special_ids["<|eos|>"]
        self.vocab_size = first_special + len(SPECIAL_TOKENS)
        self._ranks = {pair: rank for rank, pair in enumerate(self._merges)}
        self._spellings = [*self._vocab, *SPECIAL_TOKENS]

    def encode_bytes(self, text: str) -> list[int]:
        """The ids of a text's bytes, unmerged."""
        return list(text.encode())

    def encode(self, text: str) -> list[int]:
        """The ids of a text, as the tokenizers library gives them."""
        ids: list[int] = []
        for part in _SPECIAL.split(text):
            if part in self.special_ids:
                ids.append(self.special_ids[part])
                continue
            for word in words(part):
                symbols = merged([self._alphabet[byte] for byte in word.encode()], self._ranks)
                ids += [self._vocab[symbol] for symbol in symbols]
        return ids

    # What a TokenizationService serves.

    def encode_batch(self, texts: Sequence[str], *, add_special_tokens: bool) -> list[list[int]]:
        """Each text's ids; it puts no tokens of its own around a text."""
        return [self.encode(text) for text in texts]

    def encode_typed(self, texts: Sequence[str | Sequence[str]]) -> list[tuple[list[int], list[int]]]:
        """The ids of each text or pair of texts, and the type of each id."""
        parts = [[self.encode(part) for part in ([text] if isinstance(text, str) else text)] for text in texts]
        return [
            ([token for ids in row for token in ids], [kind for kind, ids in enumerate(row) for _ in ids])
            for row in parts
        ]

    def decode_batch(self, rows: Sequence[Sequence[int]], *, skip_special_tokens: bool) -> list[str]:
        """Each row's text."""
        return [self.decode(list(row), skip_special_tokens=skip_special_tokens) for row in rows]

    def pieces(self, tokens: Sequence[int]) -> list[str | None]:
        """The vocabulary's own spelling of each token, None for an unknown one."""
        return [self._spellings[token] if 0 <= token < self.vocab_size else None for token in tokens]

    def id_of(self, piece: str) -> int | None:
        """The token that the vocabulary spells so, None if there is none."""
        return self.special_ids.get(piece, self._vocab.get(piece))

    def piece(self, token: int, *, skip_special_tokens: bool = True) -> bytes:
        """The bytes that one id stands for."""
        if token < len(self._pieces):
            return self._pieces[token]
        return b"" if skip_special_tokens else self._special_names.get(token, "").encode()

    def decode(self, ids: list[int], *, skip_special_tokens: bool = True) -> str:
        """The text of ids; what isn't UTF-8 becomes U+FFFD."""
        return b"".join(self.piece(i, skip_special_tokens=skip_special_tokens) for i in ids).decode(errors="replace")

    def save(self, path: Path) -> None:
        """Write the tokenizer in tokenizers' JSON."""
        with writing("The tokenizer's file", path.parent):
            path.write_text(json.dumps(self._as_json(), ensure_ascii=False), encoding="utf-8")

    def _merge_word(self, symbols: list[str], alphabet: list[str]) -> None:
        back = {char: byte for byte, char in enumerate(alphabet)}
        left = symbols[0]
        for right in symbols[1:]:
            if left + right not in self._vocab:
                self._vocab[left + right] = len(self._pieces)
                self._pieces.append(bytes(back[char] for char in left + right))
                self._merges.append((left, right))
            left += right

    def _as_json(self) -> dict[str, Any]:
        byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
        flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
        return {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": [{"id": id_, "content": token, **flags} for token, id_ in self.special_ids.items()],
            "normalizer": None,
            "pre_tokenizer": byte_level,
            "post_processor": None,
            "decoder": byte_level,
            "model": {
                "type": "BPE",
                "dropout": None,
                "unk_token": None,
                "continuing_subword_prefix": None,
                "end_of_word_suffix": None,
                "fuse_unk": False,
                "byte_fallback": False,
                "ignore_merges": False,
                "vocab": self._vocab,
                "merges": [" ".join(pair) for pair in self._merges],
            },
        }


class IncrementalText:
    """One request's text as it grows: an incomplete character is held back until it is whole or the end comes."""

    __slots__ = ("_decoder", "_skip", "_tokenizer")

    def __init__(self, tokenizer: ByteTokenizer, *, skip_special_tokens: bool) -> None:
        self._tokenizer = tokenizer
        self._skip = skip_special_tokens
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        """The characters that this token completes."""
        return self._decoder.decode(self._tokenizer.piece(token, skip_special_tokens=self._skip))

    def finish(self) -> str:
        """What is left at the end: U+FFFD for a piece of a character, else nothing."""
        return self._decoder.decode(b"", final=True)


def _byte_alphabet() -> list[str]:
    """GPT-2's printable character for each byte."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]
