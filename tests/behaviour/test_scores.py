"""Scores by a model that generates, end to end, in every mode and codec."""

from __future__ import annotations

import json
from collections.abc import Callable
from math import exp
from typing import Any

import pytest

from sglang_subgw.simulated import logprob_of
from support.stack import Stack, generate_body

RERANKER = (
    'Answer can only be "yes" or "no". {{ instruct | default("Judge.") }} '
    "{% if messages is defined %}{{ messages[0].content }}|{{ messages[1].content }}"
    "{% else %}{{ query[0].text }}|{{ document[0].text }}{% endif %}"
)


def scored(stack: Stack, **body: Any) -> Any:
    response = stack.post("/v1/score", body)
    assert response.status_code == 200, response.text
    return response.json()


def test_labels_after_texts(served: Stack):
    out = scored(served, query="q", items=["a", "bc"], label_token_ids=[1, 2], return_token_logprobs=True)
    assert out["token_logprobs"] == [[logprob_of(token, place) for token in (1, 2)] for place in (2, 3)]
    assert out["scores"] == [[exp(value) for value in row] for row in out["token_logprobs"]]
    assert out["usage"]["prompt_tokens"] == 5
    assert (out["model"], out["object"], out["pooled_hidden_states"]) == ("default", "scoring", None)


def test_labels_of_each_item_after_token_ids(served: Stack):
    out = scored(
        served, query=[7], items=[[8], [9, 10]], label_token_ids=[[1], [2, 3]], apply_softmax=True, temperature=2.0
    )
    weights = [exp(logprob_of(token, 3) / 2.0) for token in (2, 3)]
    assert out["scores"] == [[1.0], pytest.approx([weight / sum(weights) for weight in weights])]


def test_items_come_first_when_asked(served: Stack):
    scored(served, query="q", items=["ab"], item_first=True, label_token_ids=[1])
    assert list(served.engine.requests()[-1].input_ids) == list(b"abq")


def test_no_items_are_no_scores(served: Stack):
    before = len(served.engine.received)
    assert scored(served, query="q", items=[], label_token_ids=[1])["scores"] == []
    assert len(served.engine.received) == before


def test_every_shard_scores_the_same(served: Stack):
    body = {"query": "q", "items": ["a"], "label_token_ids": [1]}
    with served.client_per_shard() as clients:
        rows = [one.post("/v1/score", json=body).json()["scores"] for one in clients]
    assert rows == [[[exp(logprob_of(1, 2))]]] * served.shard_count


def body(**fields: Any) -> bytes:
    return json.dumps({"query": "q", "items": ["a"], "label_token_ids": [1], **fields}).encode()


BAD = {
    "no labels": ("/v1/score", body(label_token_ids=None)),
    "empty labels": ("/v1/score", body(label_token_ids=[])),
    "an empty list of labels": ("/v1/score", body(label_token_ids=[[]])),
    "labels for other items": ("/v1/score", body(label_token_ids=[[1], [2]])),
    "the same label twice": ("/v1/score", body(label_token_ids=[1, 1])),
    "a negative label": ("/v1/score", body(label_token_ids=[-1])),
    "a label out of the vocabulary": ("/v1/score", body(label_token_ids=[10**6])),
    "no items": ("/v1/score", body(items=None)),
    "items of a wrong type": ("/v1/score", body(items=[1])),
    "query of a wrong type": ("/v1/score", body(query={})),
    "ids out of the vocabulary": ("/v1/score", body(query=[10**6], items=[[1]])),
    "temperature 0": ("/v1/score", body(temperature=0.0, apply_softmax=True)),
    "temperature without softmax": ("/v1/score", body(temperature=2.0)),
    "states before a head that isn't there": ("/v1/score", body(return_pooled_hidden_states=True)),
    "an extraction token without an engine for it": ("/v1/score", body(score_extraction_token="a")),
    "unknown field": ("/v1/score", body(no_such_field=1)),
    "unknown model": ("/v1/score", body(model="other")),
    "an embedding": ("/encode", b'{"text": "a"}'),
    "an embedding of OpenAI's": ("/v1/embeddings", b'{"input": "a"}'),
    "a ranking without a model for it": ("/v1/rerank", b'{"query": "q", "documents": ["a"]}'),
    "places without scoring": ("/generate", b'{"input_ids": [1, 2], "token_indices_to_pool": [1]}'),
}


@pytest.mark.parametrize(("path", "content"), BAD.values(), ids=BAD.keys())
def test_bad_input_is_refused_before_anything_is_sent(served: Stack, path: str, content: bytes):
    before = len(served.engine.received)
    with served.client() as one:
        response = one.post(path, content=content, headers={"content-type": "application/json"})
        assert 400 <= response.status_code < 500, response.text
        assert len(json.dumps(response.json())) > 20
        assert len(served.engine.received) == before
        assert one.post("/generate", json=generate_body("abc", 4)).json()["text"] == "abca"


def test_items_in_one_prompt(make_stack: Callable[..., Stack], codec: str):
    features = {"enable_mis": True, "disable_radix_cache": True, "chunked_prefill_size": -1}
    stack = make_stack(codec=codec, model={"vocab_size": 10000}, features=features)
    out = scored(stack, query="q", items=["a", "bc"], label_token_ids=[[1], [2, 3]])
    assert out["scores"] == [[exp(logprob_of(1, 3))], [exp(logprob_of(token, 6)) for token in (2, 3)]]
    setwise = scored(
        stack, query="q", items=["a#", "#b#"], label_token_ids=[4], score_extraction_token="#", apply_softmax=True
    )
    assert setwise["scores"] == [[[1.0]], [[1.0], [1.0]]]
    refused = stack.post(
        "/v1/score", {"query": "q#", "items": ["a#"], "label_token_ids": [4]} | {"score_extraction_token": "#"}
    )
    assert refused.status_code == 400
    assert "outside the candidate items" in refused.text
    stack.check()


def test_documents_are_ranked_by_a_yes_or_a_no(make_stack: Callable[..., Stack]):
    stack = make_stack(model={"chat_template": RERANKER, "vocab_size": 10000})
    documents = ["one", "a longer one", "three"]
    response = stack.post("/v1/rerank", {"query": "q", "documents": documents, "instruct": "Be kind."})
    assert response.status_code == 200, response.text
    out = response.json()
    assert [row["score"] for row in out] == sorted((row["score"] for row in out), reverse=True)
    assert sorted(row["document"] for row in out) == sorted(documents)
    assert all(row["meta_info"] is None for row in out)
    prompts = [stack.engine.tokenizer.decode(list(request.input_ids)) for request in stack.engine.requests()[-3:]]
    assert prompts == [f'Answer can only be "yes" or "no". Be kind. q|{document}' for document in documents]
    # In parts it is the way of models that see.
    part = [{"type": "text", "text": "one"}]
    seen = stack.post("/v1/rerank", {"query": "q", "documents": [part], "top_n": 1})
    assert seen.status_code == 200, seen.text
    assert seen.json()[0]["document"] == part
    stack.check()
