"""Answers of the routes that give numbers equal those of SGLang's own serving code over the same engine's answers."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
from types import SimpleNamespace
from typing import Any, Self

import pytest

from sglang_subgw.engine_api.embedding import EmbeddingCalls
from sglang_subgw.engine_api.scoring import ScoringCalls
from support.http_fakes import CharTokenizer, FakeEngine, ask, contract
from support.programs import IMPORTABLE, program
from support.stock.numbers_script import Script, scripted

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(300)]

CASES: list[tuple[str, dict[str, Any], str]] = [
    ("/v1/embeddings", {"input": "abc"}, "embedding"),
    ("/v1/embeddings", {"input": ["abc", "x"], "model": "demo", "user": "me", "rid": ["r", "s"]}, "embedding"),
    ("/v1/embeddings", {"input": [1, 2, 3]}, "embedding"),
    ("/v1/embeddings", {"input": [[1], [2, 3]], "encoding_format": "base64"}, "embedding"),
    ("/v1/embeddings", {"input": "abc", "encoding_format": "base64"}, "embedding"),
    ("/v1/embeddings", {"input": ""}, "embedding"),
    ("/v1/embeddings", {"input": []}, "embedding"),
    ("/v1/embeddings", {"input": " "}, "embedding"),
    ("/v1/embeddings", {"input": ["a", " "]}, "embedding"),
    ("/v1/embeddings", {"input": "abc", "encoding_format": "hex"}, "embedding"),
    ("/v1/rerank", {"query": "q", "documents": ["one", "two", "three"]}, "embedding"),
    ("/v1/rerank", {"query": "q", "documents": ["one", "two", "three"], "top_n": 2}, "embedding"),
    ("/v1/rerank", {"query": "q", "documents": ["b", "a", "b"], "return_documents": False}, "embedding"),
    ("/v1/rerank", {"query": "", "documents": ["a"]}, "embedding"),
    ("/v1/rerank", {"query": " ", "documents": ["a"]}, "embedding"),
    ("/v1/rerank", {"query": "q", "documents": []}, "embedding"),
    ("/v1/rerank", {"query": "q", "documents": ["a", ""]}, "embedding"),
    ("/v1/rerank", {"query": "q", "documents": ["a", " "]}, "embedding"),
    ("/v1/rerank", {"query": "q", "documents": ["one", "two"]}, "reranker"),
    ("/v1/rerank", {"query": "q", "documents": ["one", "two"], "instruct": "Be kind."}, "reranker"),
    ("/v1/score", {"query": "q", "items": ["a", "bc"]}, "embedding"),
    ("/v1/score", {"query": "q", "items": "abc", "apply_softmax": True, "temperature": 2.0}, "embedding"),
    ("/v1/score", {"query": [1], "items": [[2], [3]], "label_token_ids": [4, 5], "model": "demo"}, "generation"),
    ("/v1/score", {"query": "q", "items": ["a", "b"], "label_token_ids": [[4], [5, 6]]}, "generation"),
    ("/v1/score", {"items": ["a"], "label_token_ids": [4], "return_token_logprobs": True}, "generation"),
    ("/v1/score", {"query": "q", "items": ["a"], "label_token_ids": [4, 5], "apply_softmax": True}, "generation"),
    ("/v1/score", {"query": "q", "items": ["a"]}, "generation"),
    ("/v1/score", {"query": "q", "items": [], "label_token_ids": [4]}, "generation"),
    ("/v1/score", {"query": "q", "items": ["a"], "label_token_ids": [4, 4]}, "generation"),
    ("/v1/score", {"query": "q", "label_token_ids": [4]}, "generation"),
]


class ScriptedCall:
    """A call that is answered at once."""

    def __init__(self, request: Any) -> None:
        answers = scripted(request)
        self.is_single = not isinstance(answers, list)
        rows = [answers] if self.is_single else answers
        self.samples = [SimpleNamespace(output=lambda row=row: row) for row in rows]

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        pass

    async def wait(self) -> None:
        pass


class Tokenizer(CharTokenizer):
    """With a yes and a no."""

    def id_of(self, piece: str) -> int | None:
        return {"yes": 121, "no": 110}.get(piece)


class NumbersEngine(FakeEngine, EmbeddingCalls, ScoringCalls):
    """A shard's engine with the real calls, over a worker that answers from the script."""

    # In the place of the calls' properties: the fake has attributes.
    tokenizer = None  # type: ignore[assignment]
    contract = None  # type: ignore[assignment]

    def __init__(self, name: str) -> None:
        script = Script.of(name)
        facts = contract(template=script.template)
        model = {"is_generation": script.is_generation, "architectures": ("LlamaForSequenceClassification",)}
        FakeEngine.__init__(self, dataclasses.replace(facts, model=dataclasses.replace(facts.model, **model)))
        self.tokenizer = Tokenizer()
        self.worker = SimpleNamespace(  # type: ignore[assignment]
            contract=self.contract, tokenizer=self.tokenizer, submit=self._submit
        )

    async def _submit(self, request: Any) -> ScriptedCall:
        return ScriptedCall(request)


@pytest.fixture(scope="module")
def stock_answers(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    out = tmp_path_factory.mktemp("stock") / "answers.json"
    done = subprocess.run(
        program("stock.numbers_replay", str(out)),
        input=json.dumps(CASES),
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **IMPORTABLE},
    )
    assert done.returncode == 0, done.stderr
    answers: list[Any] = json.loads(out.read_text())
    return answers


@pytest.mark.parametrize(("number", "path", "body", "name"), [(i, *case) for i, case in enumerate(CASES)], ids=str)
def test_equal(stock_answers: list[Any], number: int, path: str, body: dict[str, Any], name: str) -> None:
    answer = ask(path, body, lambda: NumbersEngine(name))
    status, theirs = stock_answers[number]
    assert answer.status_code == status, answer.text
    ours = answer.json()
    if status == 200:
        assert ours == rounded(theirs)
        assert shape(ours) == shape(theirs), "same values, another order"
    else:
        assert (ours["object"], ours["message"], ours["type"], ours["code"]) == (
            theirs["object"],
            theirs["message"],
            theirs["type"],
            theirs["code"],
        )


def rounded(value: Any) -> Any:
    """Numbers as pytest compares them."""
    if isinstance(value, list):
        return [rounded(item) for item in value]
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    return pytest.approx(value) if isinstance(value, float) else value


def shape(value: Any) -> Any:
    """The keys in their order."""
    if isinstance(value, list):
        return [shape(item) for item in value]
    return [(key, shape(item)) for key, item in value.items()] if isinstance(value, dict) else None
