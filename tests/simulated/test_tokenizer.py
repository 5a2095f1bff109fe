"""The byte-level tokenizer: what `tokenizers` makes of its file, and incremental text."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_subgw.simulated import ByteTokenizer
from sglang_subgw.simulated.tokenizer import CHAT_TEMPLATE, SPECIAL_TOKENS, IncrementalText

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)


@pytest.fixture(scope="module")
def backend(tmp_path_factory: pytest.TempPathFactory):
    tokenizers = pytest.importorskip("tokenizers")
    path: Path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    ByteTokenizer().save(path)
    return tokenizers.Tokenizer.from_file(str(path))


@given(text=TEXT)
def test_text_survives_the_library(backend, text):
    ids = backend.encode(text).ids
    assert backend.decode(ids, skip_special_tokens=False) == text
    assert ByteTokenizer().decode(ids, skip_special_tokens=False) == text


def test_words_are_merged_and_specials_are_single(backend):
    assert len(backend.encode("hello world").ids) == 2
    assert backend.encode("<|user|>").ids == [ByteTokenizer().special_ids["<|user|>"]]
    assert backend.get_vocab_size() == ByteTokenizer().vocab_size


def test_the_chat_template_uses_its_special_tokens():
    for role in ("system", "user", "assistant"):
        assert f"<|{role}|>" in SPECIAL_TOKENS
    assert "<|end|>" in CHAT_TEMPLATE


@given(text=TEXT)
def test_incremental_text_shows_whole_characters_only(text):
    tokenizer = ByteTokenizer()
    incremental = IncrementalText(tokenizer, skip_special_tokens=True)
    pieces = [incremental.push(token) for token in tokenizer.encode_bytes(text)]
    assert "".join(pieces) + incremental.finish() == text
    assert all(piece == "" or text.find(piece) >= 0 for piece in pieces)


@given(data=st.binary(max_size=40))
def test_any_bytes_become_some_text(data):
    incremental = IncrementalText(ByteTokenizer(), skip_special_tokens=True)
    assert "".join(map(incremental.push, data)) + incremental.finish() == data.decode(errors="replace")
