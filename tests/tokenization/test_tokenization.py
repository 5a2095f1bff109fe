"""Text tokenized on the engine's side: the same ids as by the library, bounded in time, and what goes wrong."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_subgw.errors import EngineUnavailable, RequestRejected
from sglang_subgw.simulated import ByteTokenizer
from sglang_subgw.tokenization import frames as frames
from sglang_subgw.tokenization import remote as tokenize_remote
from sglang_subgw.tokenization.local import LocalTokenizer
from sglang_subgw.tokenization.remote import RemoteTokenizer
from sglang_subgw.tokenization.server import TokenizationService
from sglang_subgw.tokenization.tokenizer import ShardTokenizer
from support.shard_values import contract

PIECES = st.sampled_from(["hello", " the", "<|bos|>", "  ", "\n\t", "don't", "'", "²", "한글", "\x1c", "\x85", "٣"])
TEXT = st.lists(st.one_of(PIECES, st.text(st.characters(exclude_categories=["Cs", "Cn"]), max_size=8))).map("".join)


def remote(path: Path) -> ShardTokenizer:
    """A shard's tokenizer that has no file to load."""
    return ShardTokenizer(contract(model={"tokenizer_file": "", "tokenization_socket": str(path)}))


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> LocalTokenizer:
    pytest.importorskip("tokenizers")
    file = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    ByteTokenizer().save(file)
    return LocalTokenizer(str(file))


@pytest.fixture
def path(runtime_dir: Path) -> Path:
    return runtime_dir / "tokenize"


@pytest.fixture
def served(path: Path) -> Iterator[ShardTokenizer]:
    """A client of a service around the simulated engine's tokenizer."""
    service = TokenizationService(str(path), ByteTokenizer)
    service.start()
    client = remote(path)
    try:
        yield client
    finally:
        client.close()
        service.close()


def test_it_tokenizes_as_the_library_does(library: LocalTokenizer, path: Path) -> None:
    service = TokenizationService(str(path), lambda: library)
    service.start()
    client = remote(path)

    @given(text=TEXT, special=st.booleans())
    def same(text: str, special: bool) -> None:
        ids = library.encode(text, add_special_tokens=special)
        assert client.encode(text, add_special_tokens=special) == ids
        assert (
            client.decode(ids, skip_special_tokens=special)
            == library.decode_batch([ids], skip_special_tokens=special)[0]
        )
        assert client.token_texts(ids) == library.decode_batch([[i] for i in ids], skip_special_tokens=False)

    try:
        same()
        assert client.vocab_size == library.vocab_size
        tokens = range(-1, library.vocab_size + 1)
        assert [client.id_to_token(t) for t in tokens] == [None, *library.pieces(tokens[1:])]
    finally:
        client.close()
        service.close()


@given(text=TEXT)
def test_the_simulated_tokenizer_needs_no_library(library: LocalTokenizer, text: str) -> None:
    plain = ByteTokenizer()
    ids = library.encode(text, add_special_tokens=True)
    assert plain.encode(text) == ids
    for skip in (True, False):
        assert plain.decode_batch([ids], skip_special_tokens=skip) == library.decode_batch(
            [ids], skip_special_tokens=skip
        )


@given(pair=st.tuples(TEXT, TEXT))
def test_pairs_are_those_of_the_library(library: LocalTokenizer, pair: tuple[str, str]) -> None:
    assert ByteTokenizer().encode_typed([pair[0], pair]) == library.encode_typed([pair[0], pair])


def test_the_simulated_vocabulary_is_the_librarys(library: LocalTokenizer) -> None:
    tokens = range(library.vocab_size + 2)
    assert ByteTokenizer().pieces(tokens) == library.pieces(tokens)
    pieces = [piece for piece in library.pieces(tokens) if piece is not None] + ["none such"]
    assert [ByteTokenizer().id_of(piece) for piece in pieces] == [library.id_of(piece) for piece in pieces]


def test_a_shard_uses_it_like_its_own(served: ShardTokenizer) -> None:
    assert served.loaded
    assert served.remote
    assert served.encode("hello 한") == ByteTokenizer().encode("hello 한")
    assert not served.adds_special_tokens
    assert served.token_texts([272, 97]) == ["hello", "a"]
    assert asyncio.run(served.encode_all(["hello", ""])) == [[272], []]
    assert asyncio.run(served.encode_typed(["hello", ["hello", "ab"]])) == [([272], [0]), ([272, 97, 98], [0, 1, 1])]
    assert (served.id_of("hello"), served.id_of("none such")) == (272, None)


def test_only_this_user_may_connect(served: ShardTokenizer, path: Path) -> None:
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600


def test_long_prompts_leave_the_loop_free_and_others_alone(served: ShardTokenizer) -> None:
    async def run() -> None:
        long = asyncio.create_task(served.encode_all(["hello world " * 20_000]))
        await asyncio.sleep(0.01)
        assert await served.encode_all(["hello"]) == [[272]]
        assert not long.done()
        assert len((await long)[0]) == 20_000 * 2 + 20_000

    asyncio.run(run())


@pytest.mark.parametrize("text", ["\ud800", "a\udfff"])
def test_what_cannot_be_encoded_is_the_requests_fault(served: ShardTokenizer, text: str) -> None:
    with pytest.raises(RequestRejected, match="can't be tokenized: UnicodeEncodeError"):
        served.encode(text)
    assert served.encode("hello") == [272]


def test_a_service_that_is_silent_is_waited_for_in_vain_but_not_for_long(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokenize_remote, "CALL_SECONDS", 0.1)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        client = remote(path)
        began = time.monotonic()
        with pytest.raises(EngineUnavailable, match=r"did not tokenize within 0\.1 s"):
            client.encode("hello")
        assert time.monotonic() - began < 1
        client.close()
    path.unlink()


def test_an_answer_that_comes_late_is_nobody_elses(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow(ByteTokenizer):
        def encode_batch(self, texts: Any, *, add_special_tokens: bool) -> list[list[int]]:
            if texts == ["slow"]:
                time.sleep(0.3)
            return super().encode_batch(texts, add_special_tokens=add_special_tokens)

    service = TokenizationService(str(path), Slow)
    service.start()
    client = remote(path)
    assert client.encode("hello") == [272]
    monkeypatch.setattr(tokenize_remote, "CALL_SECONDS", 0.1)
    with pytest.raises(EngineUnavailable):
        client.encode("slow")
    assert client.encode("hello") == [272]
    client.close()
    service.close()


def test_without_the_engine_text_ends_with_a_503(path: Path) -> None:
    client = remote(path)
    with pytest.raises(EngineUnavailable, match="is gone"):
        client.encode("hello")
    client.close()
    with pytest.raises(EngineUnavailable, match="stopping"):
        client.encode("hello")


def test_closing_ends_what_is_underway(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()

        async def run() -> None:
            client = remote(path)
            waiting = asyncio.create_task(client.encode_all(["hello"]))
            await asyncio.sleep(0.05)
            client.close()
            with pytest.raises(EngineUnavailable):
                await waiting

        began = time.monotonic()
        asyncio.run(run())
        assert time.monotonic() - began < 5
    path.unlink()


def test_the_service_survives_clients_that_break_off_or_break_the_rules(served: ShardTokenizer, path: Path) -> None:
    for data in (b"", b"\0\0", b"\xff\xff\xff\xff", struct.pack(">I", 3) + b"abc", struct.pack(">I", 2) + b"[]"):
        with socket.socket(socket.AF_UNIX) as sock:
            sock.connect(str(path))
            sock.sendall(data)
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(str(path))
        for request in (
            {},
            {"call": "exec"},
            {"call": "encode", "texts": "x", "add_special_tokens": True},
            {"call": "encode", "texts": ["x"], "add_special_tokens": 1},
            {"call": "vocab_size", "more": 1},
            {"call": "encode", "texts": [1], "add_special_tokens": True},
            {"call": "pieces", "tokens": ["x"]},
        ):
            frames.send(sock, request)
            assert list(frames.receive(sock)) == ["error"]
    assert served.encode("hello") == [272]


def test_the_end_of_the_service_ends_its_clients_connections(path: Path) -> None:
    service = TokenizationService(str(path), ByteTokenizer)
    service.start()
    client = remote(path)
    assert client.encode("hello") == [272]
    service.close()
    service.close()
    assert not path.exists()
    with pytest.raises(EngineUnavailable):
        client.encode("hello")
    client.close()


def test_it_is_used_from_many_threads(served: ShardTokenizer) -> None:
    wrong: list[Any] = []

    def ask(name: int) -> None:
        text = f"hello {name}"
        wrong.extend(text for _ in range(50) if served.decode(served.encode(text)) != text)

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_frame_that_is_too_long_is_never_sent(monkeypatch: pytest.MonkeyPatch, served: ShardTokenizer) -> None:
    monkeypatch.setattr(frames, "MAX_FRAME", 1000)
    with pytest.raises(RequestRejected, match="more than fit"):
        served.encode("x" * 2000)
    assert served.encode("hello") == [272]


def test_remote_pieces_come_in_blocks(served: ShardTokenizer) -> None:
    asked: list[str] = []
    backend = served._backend
    assert isinstance(backend, RemoteTokenizer)
    ask = backend._ask
    backend._ask = lambda call, *args, **more: (asked.append(call), ask(call, *args, **more))[1]  # type: ignore[method-assign]
    assert [served.id_to_token(token) for token in range(256)] == ByteTokenizer().pieces(range(256))
    assert asked == ["vocab_size", "pieces"]
