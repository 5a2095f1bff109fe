"""Embeddings against SGLang's own code: the same messages, the same refusals, the same answers."""

from __future__ import annotations

import asyncio
import dataclasses
import pickle
import warnings
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_subgw.errors import RequestRejected
from sglang_subgw.wire.codec import codec_for
from sglang_subgw.worker.answers.embedding_sample import EmbeddingSample
from sglang_subgw.worker.answers.facts import AnswerFacts
from sglang_subgw.worker.families.embedding import EmbeddingFamily
from sglang_subgw.worker.requests.request import EmbeddingRequest
from support.shard_values import contract
from support.stock.embedding import VOCAB_SIZE, Tokens, stock_config, stock_manager, stock_messages

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(240)]

ENDPOINT = "ipc:///own/worker"
LONG = {"context_length": 4096, "vocab_size": VOCAB_SIZE, "max_req_input_len": 4090}


@pytest.fixture(scope="session")
def srt() -> Any:
    """SGLang's modules that these tests compare with."""
    pytest.importorskip("sglang")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from sglang.srt.managers import io_struct, tokenizer_manager
        from sglang.srt.sampling import sampling_params
    return SimpleNamespace(io_struct=io_struct, manager=tokenizer_manager, sampling=sampling_params)


def contract_of(*, model: dict[str, Any] | None = None, **features: Any) -> Any:
    """A contract of an embedding model with a long context."""
    made = contract(**features)
    facts = {**LONG, "is_generation": False, **(model or {})}
    return dataclasses.replace(made, model=dataclasses.replace(made.model, **facts))


def own_frames(facts: Any, request: EmbeddingRequest, codec: str) -> list[bytes]:
    """The frames that a shard sends for a request, one per prompt."""
    family = EmbeddingFamily(facts, Tokens(), AnswerFacts(), ENDPOINT)  # type: ignore[arg-type]
    ready = asyncio.run(family.prepare(request, family.plan(request)))
    encoder = codec_for(dataclasses.replace(facts.wire, codec=codec))
    return [encoder.encode(family.kind, item.message("r")) for item in ready]


TEXTS = st.text("ab é한", min_size=1, max_size=5)
IDS = st.lists(st.integers(0, VOCAB_SIZE - 1), min_size=1, max_size=5)
REQUESTS = st.one_of(
    st.fixed_dictionaries({"text": st.one_of(TEXTS, st.lists(TEXTS, min_size=1, max_size=3))}),
    st.fixed_dictionaries({"input_ids": st.one_of(IDS, st.lists(IDS, min_size=1, max_size=3))}),
    st.fixed_dictionaries(
        {
            "text": st.lists(st.lists(TEXTS, min_size=2, max_size=2), min_size=1, max_size=3),
            "is_cross_encoder_request": st.just(True),
        }
    ),
    st.fixed_dictionaries({"text": TEXTS, "is_cross_encoder_request": st.just(True)}),
)
OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "priority": st.integers(-(2**63), 2**63 - 1),
        "return_pooled_hidden_states": st.booleans(),
        "sampling_params": st.fixed_dictionaries(
            {}, optional={"temperature": st.sampled_from([0.0, 1.0]), "max_new_tokens": st.integers(0, 9)}
        ),
    },
)


@pytest.mark.parametrize("codec", ["pickle", "msgpack"])
@given(fields=REQUESTS, options=OPTIONS)
def test_messages_are_sglangs_field_by_field(
    srt: Any, codec: str, fields: dict[str, Any], options: dict[str, Any]
) -> None:
    decode = pickle.loads if codec == "pickle" else srt.io_struct.msgpack_decode
    frames = own_frames(contract_of(), EmbeddingRequest(**fields, **options), codec)
    with pytest.MonkeyPatch.context() as monkeypatch:
        manager = stock_manager(srt, monkeypatch)
        stock = asyncio.run(stock_messages(srt, manager, srt.io_struct.EmbeddingReqInput(**fields, **options)))
    assert len(frames) == len(stock)
    for frame, expected in zip(frames, stock, strict=True):
        got = decode(frame)
        # Ids and addresses are each side's own; the text is for SGLang's logs only.
        expected.rid, expected.http_worker_ipc, expected.input_text = "r", ENDPOINT, None
        assert got == expected


def test_an_adapter_and_a_default_priority_are_in_the_message(srt: Any) -> None:
    facts = contract_of(enable_lora=True, enable_priority_scheduling=True, default_priority=4)
    [frame] = own_frames(facts, EmbeddingRequest(text="a", lora_path="one"), "pickle")
    got = pickle.loads(frame)
    assert (got.lora_name, got.priority) == ("one", 4)


def test_embedding_gemma_s_texts_end_with_its_token(srt: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = Tokens()
    tokenizer.eos_token_id = ord("z")  # type: ignore[attr-defined]
    manager = stock_manager(srt, monkeypatch, config=stock_config(is_embedding_gemma=True), tokenizer=tokenizer)
    stock = asyncio.run(stock_messages(srt, manager, srt.io_struct.EmbeddingReqInput(text=["ab", "az"])))
    frames = own_frames(contract_of(model={"final_token": ord("z")}), EmbeddingRequest(text=["ab", "az"]), "pickle")
    assert [pickle.loads(frame).input_ids for frame in frames] == [message.input_ids for message in stock]


@pytest.mark.parametrize(
    ("dimensions", "config"),
    [
        (8, {}),
        (0, {"is_matryoshka": True}),
        (65, {"is_matryoshka": True}),
        (9, {"is_matryoshka": True, "matryoshka_dimensions": [8, 16]}),
        (8, {"is_matryoshka": True, "matryoshka_dimensions": [8, 16]}),
        (64, {"is_matryoshka": True}),
    ],
    ids=str,
)
def test_dimensions_are_checked_as_by_sglang(
    srt: Any, monkeypatch: pytest.MonkeyPatch, dimensions: int, config: dict[str, Any]
) -> None:
    manager = stock_manager(srt, monkeypatch, config=stock_config(**config))
    model = {**config, "matryoshka_dimensions": tuple(config.get("matryoshka_dimensions", ())), "hidden_size": 64}
    problem = refusal = ""
    try:
        asyncio.run(stock_messages(srt, manager, srt.io_struct.EmbeddingReqInput(text="a", dimensions=dimensions)))
    except ValueError as exc:
        problem = str(exc)
    try:
        [frame] = own_frames(contract_of(model=model), EmbeddingRequest(text="a", dimensions=dimensions), "pickle")
        assert pickle.loads(frame).dimensions == dimensions
    except RequestRejected as exc:
        refusal = exc.message
    assert refusal == problem


def test_a_generation_model_is_told_so_in_sglang_s_words(srt: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    manager = stock_manager(srt, monkeypatch, is_generation=True)
    with pytest.raises(ValueError, match="does not appear to be an embedding model") as expected:
        asyncio.run(stock_messages(srt, manager, srt.io_struct.EmbeddingReqInput(text="a")))
    with pytest.raises(RequestRejected) as got:
        own_frames(contract_of(model={"is_generation": True}), EmbeddingRequest(text="a"), "pickle")
    assert got.value.message == str(expected.value)


EMBEDDINGS = st.one_of(
    st.lists(st.floats(-1, 1), min_size=1, max_size=3),
    st.lists(st.lists(st.floats(-1, 1), min_size=2, max_size=2), min_size=1, max_size=2),
    st.dictionaries(st.integers(0, 99), st.floats(-1, 1), max_size=3),
    st.floats(-1, 1),
)


@given(embeddings=st.lists(EMBEDDINGS, min_size=2, max_size=2), states=st.sampled_from(["none", "stacked", "mixed"]))
def test_answers_are_sglangs_field_by_field(srt: Any, embeddings: list[Any], states: str) -> None:
    torch = pytest.importorskip("torch")
    rows = {"none": None, "stacked": [[[0.5, 1.0], [1.5, 2.0]]], "mixed": [None, [1.5, 2.0]]}[states]
    columns: dict[str, Any] = {
        "rids": ["other", "r"],
        "finished_reasons": [None, {"type": "length", "length": 0}],
        "embeddings": embeddings,
        "prompt_tokens": [1, 3],
        "cached_tokens": [0, 2],
        "placeholder_tokens_idx": None,
        "placeholder_tokens_val": None,
        "retraction_counts": [0, 1],
        "cached_tokens_details": [None, None],
        "time_stats": None,
        "pooled_hidden_states": rows,
    }
    tensors = None if rows is None else [None if row is None else torch.tensor(row) for row in rows]

    async def stock_answer() -> dict[str, Any]:
        manager = srt.manager.TokenizerManager.__new__(srt.manager.TokenizerManager)
        vars(manager).update(
            rid_to_state={},
            enable_metrics=False,
            enable_lora=False,
            dump_requests_folder="",
            crash_dump_folder="",
            config_value=lambda name: "default",
            request_logger=SimpleNamespace(log_finished_request=lambda *args, **kwargs: None),
            request_metrics_exporter_manager=SimpleNamespace(exporter_enabled=lambda: False),
        )
        request = srt.io_struct.EmbeddingReqInput(text="x", rid="r", sampling_params={}, log_metrics=False)
        request.normalize_batch_and_arguments()
        stats = srt.manager.APIServerReqTimeStats()
        stats.set_created_time()
        manager.rid_to_state["r"] = srt.manager.ReqState([], False, asyncio.Event(), request, stats)
        answers = manager._wait_one_response(request)
        output = srt.io_struct.BatchEmbeddingOutput(**{**columns, "pooled_hidden_states": tensors})
        await manager._handle_batch_output(output)
        answer: dict[str, Any] = await anext(answers)
        return answer

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(srt.manager, "get_serving", lambda: SimpleNamespace(batch_notify_size=16))
        monkeypatch.setattr(srt.manager, "get_spec", lambda: SimpleNamespace(speculative_algorithm=None))
        expected = asyncio.run(stock_answer())
    own = EmbeddingSample("r", "r", 0, AnswerFacts())
    own.on_output(columns, 1)
    got = own.output()
    for out in (got, expected):
        for time in ("e2e_latency", "response_sent_to_client_ts"):
            assert out["meta_info"].pop(time) > 0
    if "pooled_hidden_state" in expected:
        expected["pooled_hidden_state"] = expected["pooled_hidden_state"].tolist()
    assert got == expected
    assert list(got["meta_info"]) == list(expected["meta_info"])
