"""Requests for embeddings taken apart and checked, without an engine."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

import pytest

from sglang_subgw.errors import RequestRejected
from sglang_subgw.worker.answers.facts import AnswerFacts
from sglang_subgw.worker.families.embedding import EmbeddingFamily
from sglang_subgw.worker.requests.plan import MAX_ANSWERS, RequestPlan
from sglang_subgw.worker.requests.request import EmbeddingRequest
from support.shard_values import CONTEXT_LENGTH, VOCAB_SIZE, contract


class Bytes:
    """One id per byte."""

    loaded = True

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return list(text.encode())

    async def encode_all(self, texts: Any, *, add_special_tokens: bool = True) -> list[list[int]]:
        return [self.encode(text) for text in texts]

    async def encode_typed(self, texts: Any) -> list[tuple[list[int], list[int]]]:
        out = []
        for text in texts:
            parts = [text] if isinstance(text, str) else text
            rows = [self.encode(part) for part in parts]
            out.append(
                ([token for row in rows for token in row], [place for place, row in enumerate(rows) for _ in row])
            )
        return out


def family(*, model: dict[str, Any] | None = None, **features: Any) -> EmbeddingFamily:
    facts = contract(model={"is_generation": False, **(model or {})}, **features)
    return EmbeddingFamily(facts, Bytes(), AnswerFacts(), "ipc:///own")  # type: ignore[arg-type]


def prepared(made: EmbeddingFamily, **fields: Any) -> tuple[RequestPlan[Any], list[dict[str, Any]]]:
    """The plan of a request, and its prompts' messages."""
    request = EmbeddingRequest(**fields)
    plan = made.plan(request)
    return plan, [item.message("r") for item in asyncio.run(made.prepare(request, plan))]


def test_a_batch_has_a_name_of_its_own() -> None:
    plan, messages = prepared(family(), text=["a", "b"], rid="mine")
    assert (plan.is_single, plan.samples, plan.names) == (False, 1, ["mine_0", "mine_1", "mine"])
    assert [list(message["input_ids"]) for message in messages] == [[97], [98]]


def test_a_single_prompt_is_no_batch() -> None:
    plan, [message] = prepared(family(), input_ids=[1, 2], rid="mine")
    assert (plan.is_single, plan.names) == (True, ["mine"])
    assert message["sampling_params"].fields["max_new_tokens"] == 0
    assert "dimensions" not in message


def test_what_is_too_long_is_cut_where_the_engine_allows_it() -> None:
    long = "x" * (CONTEXT_LENGTH + 9)
    with pytest.raises(RequestRejected, match="longer than the model's context length"):
        prepared(family(), text=long)
    _, [message] = prepared(family(allow_auto_truncate=True), text=long)
    assert len(message["input_ids"]) == CONTEXT_LENGTH


def test_types_are_cut_with_their_ids_before_the_scheduler_cuts_these() -> None:
    made = family(allow_auto_truncate=True)
    _, [message] = prepared(made, text=[["x" * CONTEXT_LENGTH, "y"]], is_cross_encoder_request=True)
    limit = made.contract.model.max_req_input_len
    assert len(message["input_ids"]) == len(message["token_type_ids"]) == limit


@pytest.mark.parametrize("architecture", ["BertModel", "XLMRobertaForSequenceClassification"])
def test_texts_for_a_model_with_types_have_them(architecture: str) -> None:
    _, messages = prepared(family(model={"architectures": (architecture,)}), text=["ab", "c"])
    assert [message["token_type_ids"] for message in messages] == [[0, 0], [0]]
    _, [message] = prepared(family(), text="ab")
    assert message["token_type_ids"] is None


def test_the_least_that_can_be_asked_for_can_be_sent() -> None:
    for model in ({}, {"architectures": ("BertModel",)}):
        assert list(family(model=model).health_check().ids) == [0]


READOUT = {"disable_radix_cache": True, "chunked_prefill_size": -1}


@pytest.mark.parametrize("places", [[0], [1, 2], [0, 1, 2]])
def test_places_in_a_prompt(places: list[int]) -> None:
    _, [message] = prepared(family(**READOUT), input_ids=[5, 6, 7], token_indices_to_pool=places)
    assert message["token_indices_to_pool"] == places
    _, messages = prepared(family(**READOUT), input_ids=[[5, 6, 7], [8]], token_indices_to_pool=[places, [0]])
    assert [message["token_indices_to_pool"] for message in messages] == [places, [0]]
    _, [message] = prepared(family(enable_mis=True), input_ids=[5, 6, 7], multi_item_delimiter_indices=places)
    assert message["multi_item_delimiter_indices"] == places


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "nothing": ({}, "At least one of text"),
    "both": ({"text": "a", "input_ids": [1]}, "at the same time"),
    "no texts": ({"text": []}, "text cannot be empty"),
    "a text of another type": ({"text": 7}, "text must be a string"),
    "one of another type": ({"text": ["a", 7]}, "text must be a string"),
    "a pair": ({"text": [["a", "b"]]}, "text must be a string"),
    "half a pair": ({"text": [["a"]], "is_cross_encoder_request": True}, "pairs of strings"),
    "a lone surrogate": ({"text": "\ud800"}, "text must be a string"),
    "an empty text": ({"text": ["a", ""]}, "no tokens"),
    "no ids": ({"input_ids": []}, "cannot be empty"),
    "no ids in a batch": ({"input_ids": [[1], []]}, "cannot be empty"),
    "ids of another type": ({"input_ids": ["a"]}, "list of integers"),
    "booleans": ({"input_ids": [True]}, "list of integers"),
    "an unknown id": ({"input_ids": [VOCAB_SIZE]}, "out-of-vocabulary"),
    "too many": ({"text": ["a"] * (MAX_ANSWERS + 1)}, "send several"),
    "a flag of another type": ({"text": "a", "return_pooled_hidden_states": 1}, "must be a boolean"),
    "another flag": ({"text": "a", "is_cross_encoder_request": "yes"}, "must be a boolean"),
    "priority": ({"text": "a", "priority": 2**63}, "signed 64-bit"),
    "an adapter": ({"text": "a", "lora_path": "one"}, "LoRA is not enabled"),
    "adapters of another number": ({"text": ["a", "b"], "lora_path": [None]}, "equal to the batch size"),
    "names of another number": ({"text": ["a", "b"], "rid": ["x"]}, "length mismatch"),
    "a name of the engine's": ({"text": "a", "rid": "HEALTH_CHECK"}, "SGLang's own"),
    "sampling": ({"text": "a", "sampling_params": {"top_p": 7}}, "top_p"),
    "sampling of another type": ({"text": "a", "sampling_params": "x"}, "must be an object"),
    "places without an engine for them": ({"input_ids": [1], "token_indices_to_pool": [0]}, "--disable-radix-cache"),
    "delimiters without one": ({"input_ids": [1], "multi_item_delimiter_indices": [0]}, "--enable-mis"),
    "no places": ({"input_ids": [1], "token_indices_to_pool": []}, "non-empty list"),
    "places of another type": ({"input_ids": [1], "token_indices_to_pool": ["a"]}, "non-empty list"),
    "a place behind the end": ({"input_ids": [1], "token_indices_to_pool": [1]}, "ascending positions"),
    "a place before the beginning": ({"input_ids": [1], "token_indices_to_pool": [-1]}, "ascending positions"),
    "a place twice": ({"input_ids": [1, 2], "token_indices_to_pool": [1, 1]}, "ascending positions"),
}


@pytest.mark.parametrize(("fields", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_it_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestRejected, match=message):
        prepared(family(), **fields)


def test_a_checkpoint_for_decisions_does_nothing_else() -> None:
    with pytest.raises(RequestRejected, match="/v1/systemone"):
        prepared(family(model={"answers_decisions": True}), text="a")


def test_several_ranks_get_one_message_each() -> None:
    assert family().batches
    assert not family(num_dp_ranks=2).batches


def test_the_facts_survive_the_contract() -> None:
    facts = {"matryoshka_dimensions": (8, 16), "is_matryoshka": True, "hidden_size": 64, "final_token": 3}
    made = contract(model=facts, enable_mis=True, chunked_prefill_size=-1)
    assert type(made).from_json(made.to_json()) == made
    assert dataclasses.asdict(made.model)["matryoshka_dimensions"] == (8, 16)
