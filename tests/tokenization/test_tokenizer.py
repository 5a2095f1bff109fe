"""The shard's tokenizer: the engine's, or none."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from sglang_subgw.errors import RequestRejected
from sglang_subgw.simulated import ByteTokenizer
from sglang_subgw.tokenization import tokenizer as module
from sglang_subgw.tokenization.tokenizer import INLINE_CHARACTERS, ShardTokenizer
from sglang_subgw.wire.outgoing.token_ids import TokenIds
from sglang_subgw.worker.requests.expand import expand
from sglang_subgw.worker.requests.limits import fit
from sglang_subgw.worker.requests.request import GenerateRequest
from support.shard_values import contract


@pytest.fixture
def made(tmp_path: Path, needs_tokenizers: None) -> ShardTokenizer:
    file = tmp_path / "tokenizer.json"
    ByteTokenizer().save(file)
    return ShardTokenizer(contract(model={"tokenizer_file": str(file)}))


def test_it_encodes_and_decodes(made: ShardTokenizer) -> None:
    assert made.loaded
    ids = made.encode("hello 한")
    assert made.decode(ids) == "hello 한"
    assert made.id_to_token(272) == "hello"
    assert made.id_to_token(10**6) is None
    assert made.vocab_size == ByteTokenizer().vocab_size
    assert not made.adds_special_tokens
    assert (made.id_of("hello"), made.id_of("<|eos|>"), made.id_of("none such")) == (
        272,
        made.encode("<|eos|>")[0],
        None,
    )


@pytest.mark.parametrize(("missing", "sure"), [(0, True), (1, False)])
def test_ids_need_no_check_unless_the_model_knows_fewer(
    tmp_path: Path, needs_tokenizers: None, missing: int, sure: bool
) -> None:
    ByteTokenizer().save(tmp_path / "tokenizer.json")
    facts = contract(model={"tokenizer_file": str(tmp_path / "tokenizer.json")})
    facts = replace(facts, model=replace(facts.model, vocab_size=ByteTokenizer().vocab_size - missing))

    async def run() -> None:
        tokenizer = ShardTokenizer(facts)
        [ids] = await tokenizer.encode_all([tokenizer.id_to_token(tokenizer.vocab_size - 1) or ""])
        assert (type(ids) is TokenIds) == sure
        assert expand(GenerateRequest(input_ids=ids)).prompts[0].input_ids == ids
        if sure:
            assert fit(ids, facts) == (ids, len(ids))
        else:
            with pytest.raises(RequestRejected, match="out-of-vocabulary"):
                fit(ids, facts)

    asyncio.run(run())


def test_tokens_have_their_own_texts(made: ShardTokenizer) -> None:
    for _ in range(2):
        assert made.token_texts([272, 97, 272, 0xED]) == ["hello", "a", "hello", "\ufffd"]
    assert made.token_texts([]) == []
    assert "bos" in made.token_texts([made.encode("<|bos|>")[0]])[0]


def test_long_texts_leave_the_loop_free(made: ShardTokenizer) -> None:
    async def run() -> None:
        long = "hello world " * INLINE_CHARACTERS
        turns = 0
        task = asyncio.create_task(made.encode_all([long, "a"]))
        while not task.done():
            turns += 1
            await asyncio.sleep(0)
        encoded = await task
        assert turns > 2
        assert encoded == [made.encode(long), made.encode("a")]
        [(ids, types)] = await made.encode_typed([[long, "a"]])
        assert ids == [*made.encode(long), *made.encode("a")]
        assert types == [0] * (len(ids) - 1) + [1]
        made.close()
        made.close()

    asyncio.run(run())


@pytest.mark.parametrize(
    ("features", "message"),
    [({"skip_tokenizer_init": True}, "skip_tokenizer_init=True cannot accept text"), ({}, "tokenizer can't be used")],
)
def test_without_one_text_is_refused(features: dict[str, bool], message: str) -> None:
    none = ShardTokenizer(contract(**features))
    assert (none.loaded, none.vocab_size, none.adds_special_tokens) == (False, 0, False)
    with pytest.raises(RequestRejected, match=message):
        none.encode("x")
    with pytest.raises(RequestRejected, match=message):
        asyncio.run(none.encode_all(["x"]))
    assert none.id_to_token(1) is None


def test_without_the_library_text_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HAVE_TOKENIZERS", False)
    none = ShardTokenizer(contract(model={"tokenizer_file": "/nowhere"}))
    with pytest.raises(RequestRejected, match="library doesn't load"):
        none.encode("x")
