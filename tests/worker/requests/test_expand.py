"""Requests taken apart: batches, samples, names, and the checks before anything is sent."""

from __future__ import annotations

from typing import Any

import pytest

from sglang_subgw.contract import EngineContract
from sglang_subgw.errors import RequestRejected
from sglang_subgw.tokenization.tokenizer import ShardTokenizer
from sglang_subgw.worker.requests.checks import check_prompt, check_request
from sglang_subgw.worker.requests.expand import expand
from sglang_subgw.worker.requests.request import GenerateRequest
from sglang_subgw.worker.requests.sampling import normalize
from support.shard_values import CONTEXT_LENGTH, VOCAB_SIZE, contract


def test_a_single_prompt_has_sglangs_defaults() -> None:
    plan = expand(GenerateRequest(text="x"))
    [prompt] = plan.prompts
    assert (plan.is_single, plan.samples, plan.batch_name) == (True, 1, None)
    assert (prompt.text, prompt.input_ids, prompt.sampling_params, prompt.rid) == ("x", None, {}, None)
    assert (prompt.return_logprob, prompt.logprob_start_len, prompt.top_logprobs_num) == (False, -1, 0)


def test_batches_and_samples() -> None:
    plan = expand(GenerateRequest(text=["a", "b"], sampling_params={"n": 3}, rid="r", bootstrap_room=7))
    assert (plan.is_single, plan.samples, plan.batch_name) == (False, 3, "r")
    assert [(p.text, p.rid, p.bootstrap_room) for p in plan.prompts] == [("a", "r_0", 7), ("b", "r_1", 8)]


def test_several_samples_of_one_prompt_are_a_batch() -> None:
    plan = expand(GenerateRequest(input_ids=[1, 2], sampling_params={"n": 2}))
    assert not plan.is_single
    assert [p.input_ids for p in plan.prompts] == [[1, 2]]


def test_each_prompt_can_have_its_own() -> None:
    plan = expand(
        GenerateRequest(
            input_ids=[[1], [2, 3]],
            sampling_params=[{"temperature": 0}, {}],
            rid=["x", "y"],
            return_logprob=[True, False],
            logprob_start_len=[0, None],  # type: ignore[list-item]
            top_logprobs_num=2,
            token_ids_logprob=[[1], None],
            extra_key=["", "k"],
            bootstrap_room=[5, None],
        )
    )
    first, second = plan.prompts
    assert (first.rid, first.return_logprob, first.logprob_start_len, first.token_ids_logprob) == ("x", True, 0, [1])
    assert (second.rid, second.return_logprob, second.logprob_start_len) == ("y", False, -1)
    assert (second.token_ids_logprob, second.extra_key, first.extra_key) == (None, "k", None)
    assert (first.bootstrap_room, second.bootstrap_room) == (5, None)
    assert first.top_logprobs_num == second.top_logprobs_num == 2


def test_a_flat_list_of_token_ids_is_for_every_prompt() -> None:
    plan = expand(GenerateRequest(text=["a", "b"], token_ids_logprob=[1, 2]))
    assert [p.token_ids_logprob for p in plan.prompts] == [[1, 2], [1, 2]]
    assert expand(GenerateRequest(text="a", token_ids_logprob=0)).prompts[0].token_ids_logprob == [0]
    assert expand(GenerateRequest(text="a", token_ids_logprob=[])).prompts[0].token_ids_logprob is None


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "Either text, input_ids or input_embeds should be provided."),
        ({"text": "a", "input_ids": [1]}, "text and input_ids can't both be given."),
        ({"text": []}, "text cannot be empty."),
        ({"text": 1}, "text must be a string, got 1."),
        ({"text": ["a", 1]}, "text must be a string, got 1."),
        ({"text": "\ud800"}, "text must be a string, got '\\ud800'."),
        ({"input_ids": []}, "input_ids cannot be empty."),
        ({"input_ids": [[]]}, "input_ids cannot be empty."),
        ({"input_ids": [[1], []]}, "input_ids cannot be empty."),
        ({"input_ids": [1, True]}, "input_ids must be a list of integers"),
        ({"input_ids": [1, [2]]}, "input_ids must be a list of integers"),
        ({"input_ids": [[1], 2]}, "input_ids must be a list of integers"),
        ({"input_ids": "x"}, "input_ids must be a list of integers"),
        ({"text": "a", "sampling_params": 1}, "sampling_params must be an object"),
        (
            {"text": "a", "sampling_params": [{}, {}]},
            "The length of sampling_params should be equal to the batch size.",
        ),
        ({"text": ["a", "b"], "sampling_params": [{"n": 1}, {"n": 2}]}, "The parallel_sample_num should be the same"),
        ({"text": "a", "sampling_params": {"n": 0}}, "n must be at least 1, got 0."),
        ({"text": "a", "sampling_params": {"n": "2"}}, "n must be an integer, got '2'."),
        ({"text": "a", "rid": ""}, "rid must not be empty."),
        ({"text": "a", "rid": 1}, "The rid should be a string or a list of strings."),
        ({"text": "a", "rid": ["x"]}, "The specified rids length mismatch"),
        ({"text": ["a", "b"], "rid": ["x"]}, "The specified rids length mismatch"),
        ({"text": ["a", "b"], "rid": ["x", "x"]}, "Duplicate request IDs detected within the request: ['x']"),
        ({"text": "a", "rid": "HEALTH_CHECK_1"}, "rid must not start with HEALTH_CHECK"),
        ({"text": "a", "return_logprob": 1}, "return_logprob must be a boolean, got 1."),
        ({"text": "a", "return_logprob": [True]}, "return_logprob should not be a list for a single request."),
        ({"text": ["a", "b"], "return_logprob": [True]}, "The length of return_logprob should be equal"),
        (
            {"text": ["a", "b"], "return_logprob": [True, True], "sampling_params": {"n": 2}},
            "Cannot use list return_logprob with parallel_sample_num > 1",
        ),
        ({"text": "a", "top_logprobs_num": "2"}, "top_logprobs_num must be an integer, got '2'."),
        ({"text": "a", "return_hidden_states": "all"}, "return_hidden_states must be a boolean or the string literal"),
    ],
    ids=str,
)
def test_what_has_no_sense_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestRejected) as caught:
        expand(GenerateRequest(**fields))
    assert caught.value.message.startswith(message)


def checked(facts: EngineContract | None = None, **fields: Any) -> dict[str, Any]:
    facts = facts or contract()
    request = GenerateRequest(**({"input_ids": [1, 2, 3]} | fields))
    check_request(request, facts)
    prompt = expand(request).prompts[0]
    sampling = normalize(prompt.sampling_params, facts, ShardTokenizer(facts))
    ids = check_prompt(prompt, prompt.input_ids or [], sampling, facts)
    return {"ids": ids.tolist(), **sampling}


def test_limits_are_sglangs() -> None:
    most = [1] * (CONTEXT_LENGTH - 1)
    assert checked(input_ids=most)["ids"] == most
    assert checked(sampling_params={"max_new_tokens": CONTEXT_LENGTH - 3})["max_new_tokens"] == CONTEXT_LENGTH - 3
    with pytest.raises(
        RequestRejected, match=r"The input \(64 tokens\) is longer than the model's context length \(64"
    ):
        checked(input_ids=[1] * CONTEXT_LENGTH)
    with pytest.raises(RequestRejected) as caught:
        checked(sampling_params={"max_new_tokens": CONTEXT_LENGTH - 2})
    assert caught.value.message == (
        "Requested token count exceeds the model's maximum context length of 64 tokens. You requested a total of 65 "
        "tokens: 3 tokens from the input messages and 62 tokens for the completion. Please reduce the number of tokens "
        "in the input messages or the completion to fit within the limit."
    )


def test_reserved_tokens_count() -> None:
    with pytest.raises(RequestRejected, match=r"The input \(64 tokens\)"):
        checked(contract(model={"num_reserved_tokens": 4}), input_ids=[1] * (CONTEXT_LENGTH - 4))


def test_an_engine_that_truncates_gets_less() -> None:
    facts = contract(allow_auto_truncate=True)
    assert len(checked(facts, input_ids=[1] * 100)["ids"]) == CONTEXT_LENGTH
    assert checked(facts, sampling_params={"max_new_tokens": 1000})["max_new_tokens"] == CONTEXT_LENGTH - 3


@pytest.mark.parametrize("bad", [-1, VOCAB_SIZE, 2**62, 2**80])
def test_ids_out_of_the_vocabulary_are_refused(bad: int) -> None:
    with pytest.raises(RequestRejected, match=f"out-of-vocabulary token id {bad}; valid range is \\[0, 300\\)"):
        checked(input_ids=[1, bad])
    with pytest.raises(RequestRejected, match="out-of-vocabulary token id"):
        checked(token_ids_logprob=[bad])


@pytest.mark.parametrize(
    ("fields", "features", "message"),
    [
        ({"logprob_start_len": -2}, {}, "logprob_start_len must be at least -1"),
        ({"top_logprobs_num": -1}, {}, "top_logprobs_num must be in"),
        ({"top_logprobs_num": 301}, {}, "top_logprobs_num must be in"),
        ({"token_ids_logprob": [1.5]}, {}, "token_ids_logprob must be a flat list of integers."),
        ({"return_hidden_states": True}, {}, "The server is not configured to return hidden states."),
        ({"custom_logit_processor": "x"}, {}, "The server is not configured to enable custom logit processor."),
        ({"lora_path": "x"}, {}, "LoRA is not enabled"),
        ({"routed_dp_rank": 1}, {}, "routed_dp_rank=1 out of range [0, 1)"),
        ({"data_parallel_rank": -1}, {"num_dp_ranks": 2}, "routed_dp_rank=-1 out of range [0, 2)"),
        ({"priority": 2**63}, {}, "priority must be a signed 64-bit integer"),
        ({"priority": True}, {}, "priority must be a signed 64-bit integer"),
        ({"stream": 1}, {}, "stream must be a boolean."),
        ({"session_id": "s", "session_params": {"id": "s"}}, {}, "session_id and session_params cannot both be set."),
        ({"rid": "r", "session_params": {"id": "s"}}, {}, "rid can't be chosen"),
        ({"return_indexer_topk": True}, {"skip_tokenizer_init": True}, "return_indexer_topk is not implemented"),
    ],
    ids=str,
)
def test_what_the_engine_would_not_take_is_refused(
    fields: dict[str, Any], features: dict[str, Any], message: str
) -> None:
    with pytest.raises(RequestRejected) as caught:
        checked(contract(**features), **fields)
    assert caught.value.message.startswith(message)


def test_what_the_engine_takes_is_not() -> None:
    assert checked(contract(num_dp_ranks=2), routed_dp_rank=1)
    assert checked(contract(disaggregation_mode="decode"), bootstrap_room=3)
    assert checked(contract(disaggregation_mode="decode", disaggregation_transfer_backend="fake"))
    assert checked(contract(enable_return_hidden_states=True), return_hidden_states=True)
    assert checked(contract(server_args={"return_hidden_states_mode": "last"}), return_hidden_states="last")
    assert checked(contract(enable_custom_logit_processor=True), custom_logit_processor="x")
    with pytest.raises(RequestRejected, match="exceeds the server maximum"):
        checked(contract(server_args={"return_hidden_states_mode": "last"}), return_hidden_states=True)
    with pytest.raises(RequestRejected, match="embedding model"):
        checked(contract(model={"is_generation": False}))
