"""Requests taken apart: batches, samples, names."""

from __future__ import annotations

from typing import Any

import pytest

from sglang_subgw.errors import RequestRejected
from sglang_subgw.worker.requests.expand import expand
from sglang_subgw.worker.requests.request import GenerateRequest


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
