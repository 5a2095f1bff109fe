"""Tokenization for shards whose Python has no tokenizers library: a private unix socket in the engine's process.

One thread accepts, and each connection has one of its own, which ends with it. Frames are those of
`shard.tokenize_frames`: `{"call": name, …arguments}`, answered by `{"value": …}` or `{"error": text}`.
"""

from __future__ import annotations

import functools
import logging
import socket
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

from ..system import private_socket
from . import frames as frames
from .local import Text

log = logging.getLogger("sglang_subgw")

SOCKET_NAME: Final = "tokenize"
"""In the engine's runtime directory."""


class Tokenizer(Protocol):
    """What is served; called from several threads at once."""

    vocab_size: int

    def encode_batch(self, texts: Sequence[str], *, add_special_tokens: bool) -> list[list[int]]:
        """Each text's ids."""

    def encode_typed(self, texts: Sequence[Text]) -> list[tuple[list[int], list[int]]]:
        """The ids of each text or pair of texts, and the type of each id."""

    def decode_batch(self, rows: Sequence[Sequence[int]], *, skip_special_tokens: bool) -> list[str]:
        """Each row's text."""

    def pieces(self, tokens: Sequence[int]) -> list[str | None]:
        """The vocabulary's own spelling of each token, None for an unknown one."""

    def id_of(self, piece: str) -> int | None:
        """The token that the vocabulary spells so, None if there is none."""


class TokenizationService:
    """Serves one tokenizer from `start` to `close`; `load` makes it when somebody first asks."""

    def __init__(self, path: str, load: Callable[[], Tokenizer]) -> None:
        self._path = Path(path)
        self._load = load
        self._loading = threading.Lock()
        self._lock = threading.Lock()
        self._clients: dict[socket.socket, threading.Thread] = {}
        self._closed = False
        self._listener: socket.socket | None = None
        self._thread = threading.Thread(target=self._accept, name="tokenization")

    def start(self) -> None:
        """Listen, for this user only; raises StorageError when the socket can't be made."""
        self._listener = private_socket.listen(self._path, "The tokenizer's socket")
        self._thread.start()

    def close(self) -> None:
        """End every connection, and wait for the threads. Safe to call twice."""
        if self._listener is None:
            return
        with self._lock:
            self._closed = True
            clients = dict(self._clients)
        for sock in (self._listener, *clients):
            _shut(sock)
        for thread in (self._thread, *clients.values()):
            thread.join()
        self._listener.close()
        self._listener = None
        self._path.unlink(missing_ok=True)

    @functools.cached_property
    def _tokenizer(self) -> Tokenizer:
        return self._load()

    def _accept(self) -> None:
        assert self._listener is not None
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError as exc:
                if self._closed:
                    return
                # Out of descriptors, for one: those who wait must go on waiting.
                log.error("A shard can't connect to the tokenization service: %s", exc)
                threading.Event().wait(0.1)
                continue
            thread = threading.Thread(target=self._serve, args=(sock,), name="tokenization-client")
            with self._lock:
                if self._closed:
                    sock.close()
                    return
                self._clients[sock] = thread
                thread.start()

    def _serve(self, sock: socket.socket) -> None:
        try:
            while True:
                request = frames.receive(sock)
                frames.send(sock, self._answer(request))
        except EOFError:
            return
        except (OSError, ValueError, RecursionError) as exc:
            if not self._closed:
                log.warning("A connection to the tokenization service ended: %s", exc)
        finally:
            with self._lock:
                self._clients.pop(sock, None)
            sock.close()

    def _answer(self, request: dict[str, Any]) -> dict[str, Any]:
        try:
            with self._loading:
                tokenizer = self._tokenizer
            match request:
                case {"call": "encode", "texts": [*texts], "add_special_tokens": bool(add), **rest} if not rest:
                    return {"value": tokenizer.encode_batch(texts, add_special_tokens=add)}
                case {"call": "encode_typed", "texts": [*texts], **rest} if not rest:
                    return {"value": tokenizer.encode_typed(texts)}
                case {"call": "id_of", "piece": str(piece), **rest} if not rest:
                    return {"value": tokenizer.id_of(piece)}
                case {"call": "decode", "rows": [*rows], "skip_special_tokens": bool(skip), **rest} if not rest:
                    return {"value": tokenizer.decode_batch(rows, skip_special_tokens=skip)}
                case {"call": "pieces", "tokens": [*tokens], **rest} if not rest:
                    return {"value": tokenizer.pieces(tokens)}
                case {"call": "vocab_size", **rest} if not rest:
                    return {"value": tokenizer.vocab_size}
                case _:
                    return {"error": "no such call"}
        except Exception as exc:  # Whatever one text does to the tokenizer, its sender must hear of it.
            return {"error": f"{type(exc).__name__}: {exc}"}


def _shut(sock: socket.socket) -> None:
    try:
        sock.shutdown(socket.SHUT_RDWR)
    except OSError:
        return
