"""The checks before a request is sent: limits, ids, and what the engine would not take."""

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
