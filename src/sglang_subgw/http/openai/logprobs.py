"""Log probabilities in OpenAI's two forms, from the engine's (logprob, token id, text) triples.

A token's text loses the bytes of half a character; for byte-level tokenizers they are read back from the vocabulary.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from ...tokenization.tokenizer import ShardTokenizer

type Triple = tuple[float | None, int, str | None]
type Row = list[Triple] | None


def _byte_of_char() -> dict[str, int]:
    """GPT-2's printable stand-in of each byte, the other way round."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    table = {chr(byte): byte for byte in plain}
    table.update({chr(256 + position): byte for position, byte in enumerate(others)})
    return table


_BYTE_OF_CHAR: Final = _byte_of_char()


class TokenBytes:
    """A tokenizer's tokens as bytes; None for tokens, and tokenizers, that aren't byte-level."""

    def __init__(self, tokenizer: ShardTokenizer | None) -> None:
        self._tokenizer = tokenizer if tokenizer is not None and _is_byte_level(tokenizer) else None

    def get(self, token: int) -> bytes | None:
        """The token's bytes, or None."""
        if self._tokenizer is None:
            return None
        piece = self._tokenizer.id_to_token(token)
        if not piece:
            return None
        values = [_BYTE_OF_CHAR.get(char) for char in piece]
        return None if None in values else bytes(values)  # type: ignore[arg-type]


def _is_byte_level(tokenizer: ShardTokenizer) -> bool:
    """SGLang's own probe: a few tokens are all written in byte stand-ins."""
    size = tokenizer.vocab_size
    for token in (0, 1, 2, 3, size // 2, size - 2):
        piece = tokenizer.id_to_token(token) if 0 <= token < size else None
        if piece and any(char not in _BYTE_OF_CHAR for char in piece):
            return False
    return True


def chat_logprobs(tokens: list[Triple], tops: list[Row], table: TokenBytes) -> dict[str, Any]:
    """The `logprobs` of a chat choice."""
    content = []
    for position, (logprob, token, text) in enumerate(tokens):
        row = tops[position] if position < len(tops) else None
        entry = _entry(logprob, token, text, table)
        entry["top_logprobs"] = [_entry(*triple, table) for triple in row or ()]
        content.append(entry)
    return {"content": content}


def _entry(logprob: float | None, token: int, text: str | None, table: TokenBytes) -> dict[str, Any]:
    raw = table.get(token)
    text = text or ""
    return {"token": text, "bytes": list(text.encode() if raw is None else raw), "logprob": logprob}


def completion_logprobs(tokens: list[Triple], tops: list[Row], table: TokenBytes) -> dict[str, Any]:
    """The `logprobs` of a completion choice; SGLang gives no text offsets."""
    return {
        "text_offset": [-1] * len(tokens),
        "token_logprobs": [logprob for logprob, _, _ in tokens],
        "tokens": [_lossless(token, text, table) for _, token, text in tokens],
        "top_logprobs": [
            None if row is None else {_lossless(token, text, table): logprob for logprob, token, text in row}
            for row in tops
        ],
    }


def _lossless(token: int, text: str | None, table: TokenBytes) -> str:
    """The token's text, or one character per byte where it is only a part of a character."""
    if text is not None and "\ufffd" not in text:
        return text
    raw = table.get(token)
    if raw is not None:
        try:
            raw.decode()
        except UnicodeDecodeError:
            return raw.decode("latin-1")
    return text or ""
