"""The engine's tokenizer in the engine's process, over a private unix socket: for builds without tokenizers."""

from __future__ import annotations

import functools
import socket
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Any, Final

from ..errors import EngineUnavailable, RequestRejected
from . import frames as frames
from .local import Text

CALL_SECONDS: Final = 2.0
"""For a call on the shard's loop, which stands still meanwhile."""
BATCH_SECONDS: Final = 60.0
"""For prompts, which are encoded in a thread."""
_PIECES_AT_ONCE: Final = 256


class RemoteTokenizer:
    """Encodes and decodes from any thread; raises EngineUnavailable when no answer comes in time."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._idle: deque[socket.socket] = deque()
        self._open: set[socket.socket] = set()
        self._closed = False
        self._pieces: dict[int, list[str | None]] = {}

    @functools.cached_property
    def vocab_size(self) -> int:
        """Tokens of the tokenizer, added ones included."""
        return int(self._ask("vocab_size", CALL_SECONDS))

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """A text's ids, within `CALL_SECONDS`."""
        return self._encode([text], CALL_SECONDS, add_special_tokens)[0]

    def encode_batch(self, texts: Sequence[str], *, add_special_tokens: bool) -> list[list[int]]:
        """Each text's ids, within `BATCH_SECONDS`."""
        return self._encode(list(texts), BATCH_SECONDS, add_special_tokens)

    def encode_typed(self, texts: Sequence[Text]) -> list[tuple[list[int], list[int]]]:
        """The ids of each text or pair of texts, with its special tokens, and the type of each id."""
        plain = [text if isinstance(text, str) else list(text) for text in texts]
        return [(ids, types) for ids, types in self._ask("encode_typed", BATCH_SECONDS, texts=plain)]

    def decode_batch(self, rows: Sequence[Sequence[int]], *, skip_special_tokens: bool) -> list[str]:
        """Each row's text."""
        texts: list[str] = self._ask(
            "decode", CALL_SECONDS, rows=[list(row) for row in rows], skip_special_tokens=skip_special_tokens
        )
        return texts

    def pieces(self, tokens: Sequence[int]) -> list[str | None]:
        """The vocabulary's own spelling of each token, None for an unknown one; asked for in blocks, and kept."""
        return [self._piece(token) for token in tokens]

    def id_of(self, piece: str) -> int | None:
        """The token that the vocabulary spells so, None if there is none."""
        token: int | None = self._ask("id_of", CALL_SECONDS, piece=piece)
        return token

    def close(self) -> None:
        """End what is underway, with an error, and close the connections."""
        with self._lock:
            self._closed = True
            for link in self._open:
                try:
                    link.shutdown(socket.SHUT_RDWR)
                except OSError:
                    continue
        while self._idle:
            self._drop(self._idle.pop())

    def _encode(self, texts: list[str], seconds: float, add_special_tokens: bool) -> list[list[int]]:
        ids: list[list[int]] = self._ask("encode", seconds, texts=texts, add_special_tokens=add_special_tokens)
        return ids

    def _piece(self, token: int) -> str | None:
        block, place = divmod(token, _PIECES_AT_ONCE)
        if not 0 <= token < self.vocab_size:
            return None
        known = self._pieces.get(block)
        if known is None:
            first = block * _PIECES_AT_ONCE
            known = self._ask("pieces", CALL_SECONDS, tokens=list(range(first, first + _PIECES_AT_ONCE)))
            self._pieces[block] = known
        return known[place]

    def _ask(self, call: str, seconds: float, **arguments: Any) -> Any:
        deadline = time.monotonic() + seconds
        link: socket.socket | None = None
        answer: dict[str, Any] | None = None
        try:
            link = self._take(deadline)
            frames.send(link, {"call": call, **arguments}, deadline)
            answer = frames.receive(link, deadline)
        except TimeoutError:
            raise EngineUnavailable(f"The engine's side did not tokenize within {seconds:g} s.") from None
        except (OSError, EOFError) as exc:
            raise EngineUnavailable(f"The engine's side, which tokenizes for this shard, is gone: {exc}.") from exc
        except (ValueError, RecursionError) as exc:
            raise RequestRejected(f"The text can't be tokenized: {exc}.") from exc
        finally:
            # A connection whose answer did not come may still get it: nobody else's request may meet that.
            if link is not None:
                self._idle.append(link) if answer is not None and not self._closed else self._drop(link)
        if "value" not in answer:
            raise RequestRejected(f"The text can't be tokenized: {answer.get('error')}.")
        return answer["value"]

    def _take(self, deadline: float) -> socket.socket:
        try:
            return self._idle.pop()
        except IndexError:
            pass
        link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with self._lock:
            if self._closed:
                link.close()
                raise ConnectionAbortedError("the shard is stopping")
            self._open.add(link)
        try:
            link.settimeout(max(0.001, deadline - time.monotonic()))
            link.connect(self._path)
        except BaseException:
            self._drop(link)
            raise
        return link

    def _drop(self, link: socket.socket) -> None:
        with self._lock:
            self._open.discard(link)
        link.close()
