"""What the OpenAI routes ask of the engine: SGLang's names, defaults and grammar parameters."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest

from sglang_subgw.http.core.fields import FieldTable
from sglang_subgw.http.openai.protocol import CHAT, COMPLETION
from sglang_subgw.http.openai.sampling import SamplingFields
from sglang_subgw.simulated.wire.schema import field_lists
from sglang_subgw.worker.requests.request import GenerateRequest
from support.http_fakes import FakeEngine, client_of, contract

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


def request_of(path: str, body: dict[str, Any]) -> GenerateRequest:
    async def run() -> GenerateRequest:
        engine = FakeEngine()
        async with client_of(engine) as client:
            answer = await client.post(path, json=body)
            assert answer.status_code == 200, answer.text
        return engine.requests[0]

    return asyncio.run(run())


def chat(**more: Any) -> dict[str, Any]:
    params = request_of(
        "/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], **more}
    ).sampling_params
    assert isinstance(params, dict)
    return params


def completion(**more: Any) -> dict[str, Any]:
    params = request_of("/v1/completions", {"prompt": "a", **more}).sampling_params
    assert isinstance(params, dict)
    return params


def test_defaults() -> None:
    assert (chat()["temperature"], chat()["max_new_tokens"]) == (0.6, None)
    assert (completion()["temperature"], completion()["max_new_tokens"]) == (1.0, 16)
    assert (chat()["top_k"], chat()["spaces_between_special_tokens"]) == (-1, True)


@pytest.mark.parametrize("table", [CHAT, COMPLETION])
def test_what_an_engine_does_anyway_is_not_sent_unless_it_prefers_something_else(table: FieldTable) -> None:
    facts = contract()
    facts = replace(facts, wire=replace(facts.wire, schema=field_lists()))
    prompt = {"messages": [{"role": "user", "content": "a"}]} if table is CHAT else {"prompt": "a"}
    values = table.read(prompt)
    values |= {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "min_p": 0.5, "repetition_penalty": 1.0}
    assert SamplingFields(facts).params(values, 3) == {"min_p": 0.5, "max_new_tokens": 3}
    preferring = replace(facts, model=replace(facts.model, preferred_sampling_params={"top_p": 0.5}))
    said = SamplingFields(preferring).params(values, 3)
    assert (said["top_p"], said["top_k"], said["ignore_eos"], said["n"], said["regex"]) == (1.0, -1, False, 1, None)
    assert said.keys() == SamplingFields(contract()).params(values, 3).keys()


def test_names() -> None:
    params = chat(
        max_tokens=5, max_completion_tokens=7, seed=3, min_tokens=2, stop="x", temperature=0, logit_bias={"1": 2}
    )
    assert params == params | {
        "max_new_tokens": 7,
        "sampling_seed": 3,
        "min_new_tokens": 2,
        "stop": "x",
        "temperature": 0.0,
        "logit_bias": {"1": 2.0},
    }


@pytest.mark.parametrize("ask", [chat, completion])
def test_response_formats(ask: Any) -> None:
    assert ask(response_format={"type": "json_object"})["json_schema"] == '{"type": "object"}'
    named = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, "strict": True}}
    assert ask(response_format=named)["json_schema"] == json.dumps(SCHEMA)
    assert ask(response_format={"type": "json_schema", "schema": SCHEMA})["json_schema"] == json.dumps(SCHEMA)
    legacy = {
        "type": "structural_tag",
        "structures": [{"begin": "<a>", "schema": SCHEMA, "end": "</a>"}],
        "triggers": ["<a"],
    }
    assert json.loads(ask(response_format=legacy)["structural_tag"]) == legacy | {"at_least_one": False}
    tag = {"type": "structural_tag", "format": {"type": "any_text"}}
    assert json.loads(ask(response_format=tag)["structural_tag"]) == tag
    assert ask(regex="a+")["regex"] == "a+"
    assert ask(ebnf="root ::= x")["ebnf"] == "root ::= x"


def test_completion_prompts() -> None:
    for prompt, text in (("a", True), (["a", "b"], True), ([1, 2], False), ([[1], [2]], False)):
        request = request_of("/v1/completions", {"prompt": prompt})
        assert (request.text, request.input_ids) == ((prompt, None) if text else (None, prompt))
    request = request_of("/v1/completions", {"prompt": "a", "logprobs": 2, "echo": True})
    assert (request.return_logprob, request.top_logprobs_num, request.logprob_start_len) == (True, 2, 0)
    assert completion(json_schema="{}")["json_schema"] == "{}"
