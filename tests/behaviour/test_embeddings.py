"""Embeddings end to end: every route that answers with numbers, in every mode and codec."""

from __future__ import annotations

import base64
import json
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sglang_subgw.config import SHARD_MODES, Mode
from sglang_subgw.simulated.embedding import embedding_of
from support.client import raw_request
from support.stack import Stack, running_stack

MODEL = {"is_generation": False, "architectures": ("LlamaForSequenceClassification",), "scores_positions": True}
_SHARED = [(mode, codec) for mode in SHARD_MODES for codec in ("pickle", "msgpack")]


@pytest.fixture(scope="module", params=_SHARED, ids=[f"{mode}-{codec}" for mode, codec in _SHARED])
def shared(request: pytest.FixtureRequest, module_runtime_dir: Path) -> Iterator[Stack]:
    """One gateway over an engine of an embedding model for all tests that change nothing in it."""
    mode, codec = request.param
    model = {**MODEL, "is_matryoshka": True, "hidden_size": 6}
    with running_stack(module_runtime_dir, mode, codec=codec, model=model) as stack:
        # The engine connects to a worker when it first answers it, and its side begins a thread: no test's leftover.
        with stack.client_per_shard() as clients:
            for client in clients:
                client.post("/encode", json={"text": "warm"}).raise_for_status()
                client.post("/encode", json={"text": "warm", "image_data": "warm"}).raise_for_status()
        yield stack


@pytest.fixture
def embedding(shared: Stack) -> Iterator[Stack]:
    yield shared
    shared.wait_idle()
    shared.check()


def answer(stack: Stack, path: str, **body: Any) -> Any:
    response = stack.post(path, body)
    assert response.status_code == 200, response.text
    return response.json()


@pytest.mark.parametrize("path", ["/encode", "/classify"])
def test_a_text_s_embedding(embedding: Stack, path: str):
    out = answer(embedding, path, text="abc")
    assert out["embedding"] == embedding_of(b"abc")
    meta = out["meta_info"]
    assert (meta["prompt_tokens"], meta["weight_version"], meta["num_retractions"]) == (3, "default", 0)
    assert meta["finish_reason"] == {"type": "length", "length": 0}
    assert meta["e2e_latency"] > 0
    assert set(out) == {"embedding", "meta_info"}


def test_a_batch_keeps_its_order_and_its_names(embedding: Stack):
    texts = [f"p{i:02d}-" for i in range(12)]
    outs = answer(embedding, "/encode", text=texts, rid="mine")
    assert [out["embedding"] for out in outs] == [embedding_of(text.encode()) for text in texts]
    assert [out["meta_info"]["id"] for out in outs] == [f"mine_{i}" for i in range(12)]


def test_token_ids(embedding: Stack):
    assert answer(embedding, "/encode", input_ids=[5, 6])["embedding"] == embedding_of([5, 6])
    outs = answer(embedding, "/encode", input_ids=[[5, 6], [7]])
    assert [out["embedding"] for out in outs] == [embedding_of([5, 6]), embedding_of([7])]


def test_a_long_text(embedding: Stack):
    text = "0123456789" * 380
    assert answer(embedding, "/encode", text=text)["embedding"] == embedding_of(text.encode())


def test_pairs_have_types(embedding: Stack):
    pairs = [["ab", "c"], ["x", "yz"]]
    outs = answer(embedding, "/encode", text=pairs, is_cross_encoder_request=True)
    assert [out["embedding"] for out in outs] == [embedding_of(b"abc", [0, 0, 1]), embedding_of(b"xyz", [0, 1, 1])]


def test_fewer_dimensions_and_the_states_before_the_head(embedding: Stack):
    out = answer(embedding, "/encode", text="abc", dimensions=2, return_pooled_hidden_states=True)
    assert out["embedding"] == embedding_of(b"abc")[:2]
    assert out["pooled_hidden_state"] == [value / 2 for value in out["embedding"]]


def test_images_go_to_the_engine_s_side(embedding: Stack):
    out = answer(embedding, "/encode", text="a", image_data="data:image/png;base64,AA==", rid="r")
    assert out == {"embedding": [0.5], "meta_info": {"id": "r"}}
    method, arguments = embedding.engine.engine_side.asked[-1]
    assert method == "encode"
    assert arguments["given"]["image_data"] == "data:image/png;base64,AA=="


def test_vectors_in_the_place_of_tokens_go_to_the_engine_s_side(embedding: Stack):
    answer(embedding, "/encode", text=["a", "b"], embed_override_token_id=97, embed_overrides=[[[1.5, 2.5]], None])
    method, arguments = embedding.engine.engine_side.asked[-1]
    assert method == "encode"
    assert arguments["given"]["embed_overrides"] == [[{"tensor": 0}], None]
    assert arguments["tensors"] == [{"dtype": "float32", "shape": [2], "bytes": 8}]
    assert arguments["blob"] == struct.pack("<2f", 1.5, 2.5)


def test_openai_s_embeddings(embedding: Stack):
    out = answer(embedding, "/v1/embeddings", model="simulated-model", input=["abc", "x"])
    assert out == {
        "data": [
            {"embedding": embedding_of(b"abc"), "index": 0, "object": "embedding"},
            {"embedding": embedding_of(b"x"), "index": 1, "object": "embedding"},
        ],
        "model": "simulated-model",
        "object": "list",
        "usage": {
            "prompt_tokens": 4,
            "total_tokens": 4,
            "completion_tokens": 0,
            "prompt_tokens_details": None,
            "reasoning_tokens": 0,
            "completion_tokens_details": None,
        },
    }


@pytest.mark.parametrize("given", ["abc", [97, 98, 99], [[97, 98, 99]], ["abc"]], ids=str)
def test_openai_s_embeddings_in_base64(embedding: Stack, given: Any):
    out = answer(embedding, "/v1/embeddings", input=given, encoding_format="base64", dimensions=3)
    [item] = out["data"]
    assert struct.unpack("<3f", base64.b64decode(item["embedding"])) == tuple(embedding_of(b"abc")[:3])


def test_openai_s_embeddings_of_parts_go_to_the_engine_s_side(embedding: Stack):
    out = answer(embedding, "/v1/embeddings", input=[{"text": "a"}, {"image": "data:…"}])
    assert [item["embedding"] for item in out["data"]] == [[0.0], [1.0]]
    method, arguments = embedding.engine.engine_side.asked[-1]
    assert method == "embed_parts"
    assert arguments["input"] == [
        {"text": "a", "image": None, "video": None},
        {"text": None, "image": "data:…", "video": None},
    ]


def score_of(query: str, document: str) -> float:
    types = [0] * len(query) + [1] * len(document)
    return embedding_of((query + document).encode(), types)[0]


def test_documents_are_ranked(embedding: Stack):
    documents = ["one", "two", "three", "four"]
    out = answer(embedding, "/v1/rerank", query="q", documents=documents)
    expected = sorted(range(4), key=lambda index: -score_of("q", documents[index]))
    assert [row["index"] for row in out] == expected
    assert [row["document"] for row in out] == [documents[index] for index in expected]
    assert [row["score"] for row in out] == [score_of("q", documents[index]) for index in expected]
    assert all(row["meta_info"]["prompt_tokens"] for row in out)
    best = answer(embedding, "/v1/rerank", query="q", documents=documents, top_n=2, return_documents=False)
    assert [row["index"] for row in best] == expected[:2]
    assert all("document" not in row for row in best)


def test_a_classifier_s_scores(embedding: Stack):
    out = answer(embedding, "/v1/score", query="q", items=["a", "bc"], return_pooled_hidden_states=True)
    assert out["scores"] == [embedding_of(b"qa"), embedding_of(b"qbc")]
    assert out["pooled_hidden_states"] == [[value / 2 for value in row] for row in out["scores"]]
    assert (out["token_logprobs"], out["object"], out["usage"]["prompt_tokens"]) == (None, "scoring", 5)
    soft = answer(embedding, "/v1/score", query="q", items=["a", "bc"], item_first=True, apply_softmax=True)
    assert [sum(row) for row in soft["scores"]] == pytest.approx([1.0, 1.0])


def test_every_shard_answers_the_same(embedding: Stack):
    with embedding.client_per_shard() as clients:
        outs = [one.post("/encode", json={"text": "same"}).json()["embedding"] for one in clients]
    assert outs == [embedding_of(b"same")] * embedding.shard_count


def body(**fields: Any) -> bytes:
    return json.dumps(fields).encode()


BAD = {
    "malformed JSON": ("/encode", b'{"text": "abc"'),
    "no prompt": ("/encode", b"{}"),
    "text of a wrong type": ("/encode", body(text=17)),
    "a text that is none": ("/encode", body(text=["a", 1])),
    "no texts": ("/encode", body(text=[])),
    "empty text": ("/encode", body(text="")),
    "a pair without a cross encoder": ("/encode", body(text=[["a", "b"]])),
    "three texts for a cross encoder": ("/encode", body(text=[["a", "b", "c"]], is_cross_encoder_request=True)),
    "a text for a cross encoder": ("/encode", body(text=["a"], is_cross_encoder_request=True)),
    "two prompts": ("/encode", body(text="a", input_ids=[1])),
    "empty input_ids": ("/encode", body(input_ids=[])),
    "ids out of the vocabulary": ("/encode", body(input_ids=[10**6])),
    "negative ids": ("/encode", body(input_ids=[-1])),
    "prompt over the context length": ("/encode", body(text="x" * 5000)),
    "dimensions of a wrong type": ("/encode", body(text="a", dimensions="2")),
    "dimensions 0": ("/encode", body(text="a", dimensions=0)),
    "more dimensions than there are": ("/encode", body(text="a", dimensions=7)),
    "priority over 64 bits": ("/encode", body(text="a", priority=2**70)),
    "unknown field": ("/encode", body(text="a", no_such_field=1)),
    "an internal field": ("/encode", body(text="a", lora_id="x")),
    "an adapter without LoRA": ("/encode", body(text="a", lora_path="x")),
    "temperature -1": ("/encode", body(text="a", sampling_params={"temperature": -1})),
    "same rid twice": ("/encode", body(text=["a", "b"], rid=["r", "r"])),
    "positions without an engine for them": ("/encode", body(input_ids=[1, 2], token_indices_to_pool=[0])),
    "delimiters without an engine for them": ("/encode", body(input_ids=[1, 2], multi_item_delimiter_indices=[0])),
    "a decision layout": ("/encode", body(text="a", decision_layout=[1])),
    "lone surrogate": ("/encode", b'{"text": "\\ud800"}'),
    "a request to generate": ("/generate", body(text="a")),
    "no input": ("/v1/embeddings", body(model="simulated-model")),
    "empty input": ("/v1/embeddings", body(input="")),
    "blank input": ("/v1/embeddings", body(input="  ")),
    "one blank input": ("/v1/embeddings", body(input=["a", " "])),
    "an input that is none": ("/v1/embeddings", body(input=["a", 1])),
    "unknown encoding": ("/v1/embeddings", body(input="a", encoding_format="hex")),
    "unknown model": ("/v1/embeddings", body(input="a", model="other")),
    "unknown part": ("/v1/embeddings", body(input=[{"smell": "a"}])),
    "overrides without a token": ("/v1/embeddings", body(input="a", embed_overrides=[[[1.0]]])),
    "no documents": ("/v1/rerank", body(query="q", documents=[])),
    "blank document": ("/v1/rerank", body(query="q", documents=[" "])),
    "no query": ("/v1/rerank", body(documents=["a"])),
    "top_n 0": ("/v1/rerank", body(query="q", documents=["a"], top_n=0)),
    "no items": ("/v1/score", body(query="q")),
    "items of two kinds": ("/v1/score", body(query="q", items=["a", [1]])),
    "text and ids": ("/v1/score", body(query="q", items=[[1]])),
    "temperature without softmax": ("/v1/score", body(query="q", items=["a"], temperature=2.0)),
    "logprobs of a classifier": ("/v1/score", body(query="q", items=["a"], return_token_logprobs=True)),
    "unknown extraction token": ("/v1/score", body(query="q", items=["a"], score_extraction_token="<none>")),
}


@pytest.mark.parametrize(("path", "content"), BAD.values(), ids=BAD.keys())
def test_bad_input_is_refused_before_anything_is_sent(embedding: Stack, path: str, content: bytes):
    before = len(embedding.engine.received)
    with embedding.client() as one:
        response = one.post(path, content=content, headers={"content-type": "application/json"})
        assert 400 <= response.status_code < 500, response.text
        assert len(json.dumps(response.json())) > 20
        assert len(embedding.engine.received) == before
        assert one.post("/encode", json={"text": "abc"}).json()["embedding"] == embedding_of(b"abc")


def test_positions_and_items_in_one_prompt(make_stack: Callable[..., Stack], codec: str):
    features = {"enable_mis": True, "disable_radix_cache": True, "chunked_prefill_size": -1}
    stack = make_stack(codec=codec, model={**MODEL, "vocab_size": 10000}, features=features)
    out = answer(stack, "/v1/score", query=[7], items=[[1], [2, 3]])
    sequence = [7, 9999, 1, 9999, 2, 3, 9999]
    assert out["scores"] == [embedding_of(sequence[:3]), embedding_of(sequence[:6])]
    [request] = stack.engine.requests()[-1:]
    assert list(request.input_ids) == sequence
    assert request.multi_item_delimiter_indices == [1, 3, 6]
    places = answer(
        stack, "/encode", input_ids=[5, 6, 7], token_indices_to_pool=[0, 2], multi_item_delimiter_indices=[1]
    )
    assert places["embedding"] == [embedding_of([5]), embedding_of([5, 6, 7])]
    refused = stack.post("/encode", {"input_ids": [5, 6, 7], "token_indices_to_pool": [3]})
    assert refused.status_code == 400
    assert "ascending positions in a prompt of 3 tokens" in refused.text
    stack.check()


def test_a_client_that_leaves_is_aborted(make_stack: Callable[..., Stack]):
    stack = make_stack(model=MODEL)
    stack.engine.set_faults(stall=True)
    sock = raw_request(stack.address, "/encode", {"text": ["a", "b", "c"]})
    assert stack.engine.wait_for(lambda: stack.engine.running() == 3)
    left_at = time.monotonic()
    sock.close()
    stack.wait_idle()
    assert time.monotonic() - left_at < 1.0
    assert len(stack.engine.aborted) == len(set(stack.engine.aborted)) == 3
    stack.check()


def test_what_the_engine_refuses_is_an_error(make_stack: Callable[..., Stack]):
    stack = make_stack(model=MODEL, max_queued=0)
    refused = stack.post("/encode", {"text": "a"})
    assert (refused.status_code, refused.json()) == (503, {"error": {"message": "The request queue is full."}})
    assert stack.post("/v1/embeddings", {"input": "a"}).status_code == 503
    stack.check()


def test_a_prompt_of_a_cross_encoder_always_has_types(make_stack: Callable[..., Stack]):
    model = {**MODEL, "architectures": ("BertForSequenceClassification",), "is_cross_encoder": True}
    stack = make_stack(model=model)
    assert answer(stack, "/encode", text="abc")["embedding"] == embedding_of(b"abc")
    assert stack.engine.requests()[-1].token_type_ids == [0, 0, 0]
    stack.check()


def test_an_embedding_engine_is_healthy(make_stack: Callable[..., Stack], mode: Mode):
    stack = make_stack(model=MODEL)
    with stack.client() as one:
        assert one.get("/health").status_code == 200
    assert {request.__struct_name__ for request in stack.engine.requests()} == {"TokenizedEmbeddingReqInput"}
    stack.check()
