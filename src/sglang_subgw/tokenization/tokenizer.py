"""The shard's tokenizer: the engine's live one, in this interpreter or, without the library, on the engine's side."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from ..contract import EngineContract
from ..errors import RequestRejected
from ..wire.outgoing.token_ids import TokenIds
from .local import HAVE_TOKENIZERS, LocalTokenizer, Text
from .remote import RemoteTokenizer

INLINE_CHARACTERS: Final = 8192
"""Below it, encoding takes less than handing it to a thread and keeping the loop free would save (about 1 ms)."""

_TEXTS_KEPT: Final = 65536
_REMOTE_THREADS: Final = 4
"""Of prompts that wait for the engine's side: a long one must not hold up all others."""


class ShardTokenizer:
    """Encodes and decodes on the shard's loop; without a tokenizer it is not `loaded` and refuses text."""

    def __init__(self, contract: EngineContract) -> None:
        self._backend: LocalTokenizer | RemoteTokenizer | None = None
        self._executor: ThreadPoolExecutor | None = None
        self._texts: dict[int, str] = {}
        self._why_not = ""
        model = contract.model
        self._model_vocab_size = model.vocab_size
        if contract.features.skip_tokenizer_init:
            self._why_not = (
                "The engine initialized with skip_tokenizer_init=True cannot accept text prompts. Please provide "
                "input_ids or re-initialize the engine with skip_tokenizer_init=False."
            )
        elif HAVE_TOKENIZERS and model.tokenizer_file:
            self._backend = LocalTokenizer(model.tokenizer_file)
        elif model.tokenization_socket:
            self._backend = RemoteTokenizer(model.tokenization_socket)
        elif model.tokenizer_file:
            self._why_not = "The tokenizers library doesn't load in this Python. Please provide input_ids."
        else:
            self._why_not = "This model's tokenizer can't be used by a shard. Please provide input_ids."

    @property
    def loaded(self) -> bool:
        """Text can be encoded here."""
        return self._backend is not None

    @property
    def remote(self) -> bool:
        """The engine's side tokenizes for this shard."""
        return isinstance(self._backend, RemoteTokenizer)

    @property
    def vocab_size(self) -> int:
        """Tokens of the tokenizer, added ones included; 0 without one."""
        return 0 if self._backend is None else self._backend.vocab_size

    @property
    def adds_special_tokens(self) -> bool:
        """Encoding puts tokens of its own around a text (a BOS, for one)."""
        return self.loaded and bool(self.encode(""))

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids, at once; raises RequestRejected without a tokenizer."""
        return self._need().encode(text, add_special_tokens=add_special_tokens)

    async def encode_all(self, texts: Sequence[str], *, add_special_tokens: bool = True) -> list[list[int]]:
        """Token ids of each text; long ones, and all that the engine's side encodes, in a thread: the loop goes on."""
        backend = self._need()
        if self._inline(sum(map(len, texts))):
            rows = [backend.encode(text, add_special_tokens=add_special_tokens) for text in texts]
        else:
            rows = await self._in_thread(lambda: backend.encode_batch(texts, add_special_tokens=add_special_tokens))
        return [TokenIds(row) for row in rows] if backend.vocab_size <= self._model_vocab_size else rows

    async def encode_typed(self, texts: Sequence[Text]) -> list[tuple[list[int], list[int]]]:
        """The ids of each text or pair of texts, with its special tokens, and for each id the text that it is of."""
        backend = self._need()
        if self._inline(sum(len(text) if isinstance(text, str) else sum(map(len, text)) for text in texts)):
            return backend.encode_typed(texts)
        return await self._in_thread(lambda: backend.encode_typed(texts))

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """The ids' text; raises RequestRejected without a tokenizer."""
        return self._need().decode_batch([ids], skip_special_tokens=skip_special_tokens)[0]

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
        return None if self._backend is None else self._backend.pieces([token])[0]

    def id_of(self, piece: str) -> int | None:
        """The token that the vocabulary spells so, or None; raises RequestRejected without a tokenizer."""
        return self._need().id_of(piece)

    def close(self) -> None:
        """End and wait for the threads; a shard's interpreter can't end before they have."""
        if self._backend is not None:
            self._backend.close()
        if self._executor is not None:
            self._executor.shutdown(wait=True, cancel_futures=True)
            self._executor = None

    def _inline(self, characters: int) -> bool:
        return not self.remote and characters <= INLINE_CHARACTERS

    async def _in_thread[T](self, encode: Callable[[], T]) -> T:
        if self._executor is None:
            self._executor = ThreadPoolExecutor(_REMOTE_THREADS if self.remote else 1, thread_name_prefix="tokenize")
        # Only the batch calls of the library give up the GIL.
        return await asyncio.get_running_loop().run_in_executor(self._executor, encode)

    def _need(self) -> LocalTokenizer | RemoteTokenizer:
        if self._backend is None:
            raise RequestRejected(self._why_not)
        return self._backend
