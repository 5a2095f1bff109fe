"""The shard's own tokenizer: the engine's live one, read from its JSON file by the tokenizers library."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from ..contract import EngineContract
from ..errors import RequestRejected

try:
    import tokenizers

    _HAVE_TOKENIZERS = True
except ImportError:  # A free-threaded 3.13 has none.
    _HAVE_TOKENIZERS = False

INLINE_CHARACTERS: Final = 8192
"""Below it, encoding takes less than handing it to a thread and keeping the loop free would save (about 1 ms)."""

_TEXTS_KEPT: Final = 65536


class ShardTokenizer:
    """Encodes and decodes on the shard's loop; without a tokenizer it is not `loaded` and refuses text."""

    def __init__(self, contract: EngineContract) -> None:
        self._tokenizer: Any = None
        self._executor: ThreadPoolExecutor | None = None
        self._texts: dict[int, str] = {}
        self._why_not = (
            "The engine initialized with skip_tokenizer_init=True cannot accept text prompts. Please provide "
            "input_ids or re-initialize the engine with skip_tokenizer_init=False."
        )
        if contract.features.skip_tokenizer_init:
            return
        if not contract.model.tokenizer_file:
            self._why_not = "This model's tokenizer can't be used by a shard. Please provide input_ids."
        elif not _HAVE_TOKENIZERS:
            self._why_not = "The tokenizers library doesn't load in this Python. Please provide input_ids."
        else:
            self._tokenizer = tokenizers.Tokenizer.from_file(contract.model.tokenizer_file)
            self._tokenizer.no_truncation()
            self._tokenizer.no_padding()

    @property
    def loaded(self) -> bool:
        """Text can be encoded here."""
        return self._tokenizer is not None

    @property
    def vocab_size(self) -> int:
        """Tokens of the tokenizer, added ones included; 0 without one."""
        return 0 if self._tokenizer is None else int(self._tokenizer.get_vocab_size(with_added_tokens=True))

    @property
    def adds_special_tokens(self) -> bool:
        """Encoding puts tokens of its own around a text (a BOS, for one)."""
        return self.loaded and bool(self.encode(""))

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids, at once; raises RequestRejected without a tokenizer."""
        ids: list[int] = self._need().encode(text, add_special_tokens=add_special_tokens).ids
        return ids

    async def encode_all(self, texts: Sequence[str], *, add_special_tokens: bool = True) -> list[list[int]]:
        """Token ids of each text; long ones in a thread, so that the loop goes on."""
        tokenizer = self._need()
        if sum(map(len, texts)) <= INLINE_CHARACTERS:
            return [tokenizer.encode(text, add_special_tokens=add_special_tokens).ids for text in texts]
        if self._executor is None:
            self._executor = ThreadPoolExecutor(1, thread_name_prefix="tokenize")
        # Only the batch calls of the library give up the GIL.
        encoded = await asyncio.get_running_loop().run_in_executor(
            self._executor, lambda: tokenizer.encode_batch(list(texts), add_special_tokens=add_special_tokens)
        )
        return [encoding.ids for encoding in encoded]

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """The ids' text; raises RequestRejected without a tokenizer."""
        text: str = self._need().decode(list(ids), skip_special_tokens=skip_special_tokens)
        return text

    def token_texts(self, ids: Sequence[int]) -> list[str]:
        """Each id's own text, as SGLang shows it beside a logprob."""
        known = self._texts
        missing = list({token for token in ids if token not in known})
        if missing:
            texts = self._need().decode_batch([[token] for token in missing], skip_special_tokens=False)
            if len(known) + len(missing) > _TEXTS_KEPT:
                known = {token: known[token] for token in ids if token in known}
                self._texts = known
            known.update(zip(missing, texts, strict=True))
        return [known[token] for token in ids]

    def id_to_token(self, token: int) -> str | None:
        """The vocabulary's own spelling of a token, None for an unknown one or without a tokenizer."""
        if self._tokenizer is None:
            return None
        piece: str | None = self._tokenizer.id_to_token(token)
        return piece

    def close(self) -> None:
        """Wait for the thread; a shard's interpreter can't end before it has."""
        if self._executor is not None:
            self._executor.shutdown(wait=True, cancel_futures=True)
            self._executor = None

    def _need(self) -> Any:
        if self._tokenizer is None:
            raise RequestRejected(self._why_not)
        return self._tokenizer
