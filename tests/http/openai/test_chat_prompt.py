"""A chat's prompt: the ids of its template, of what it continues, or its own."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from support.http_fakes import CHATML, CharTokenizer, FakeEngine, client_of, contract


def ids_of(body: dict[str, Any], template: str = CHATML) -> list[int]:
    async def run() -> list[int]:
        engine = FakeEngine(contract(template))
        async with client_of(engine) as client:
            answer = await client.post("/v1/chat/completions", json=body)
            assert answer.status_code == 200, answer.text
        ids = engine.requests[0].input_ids
        assert ids is not None
        return ids  # type: ignore[return-value]

    return asyncio.run(run())


def test_the_engine_gets_the_templates_ids() -> None:
    text = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    assert ids_of({"messages": [{"role": "user", "content": "Hi"}]}) == CharTokenizer().encode(text)


def test_a_continued_message_is_appended() -> None:
    chat = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Oh"}]
    ids = ids_of({"messages": chat, "continue_final_message": True})
    assert ids == CharTokenizer().encode("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nOh")


def test_given_ids_pass_the_template_by() -> None:
    assert ids_of({"messages": [{"role": "user", "content": "Hi"}], "input_ids": [7]}) == [7]


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({}, " "),
        ({"reasoning_effort": "low"}, "low True"),
        ({"reasoning_effort": "none"}, "none False"),
        ({"chat_template_kwargs": {"enable_thinking": 7, "reasoning_effort": "x"}}, "x 7"),
    ],
    ids=str,
)
def test_variables_of_the_request_reach_the_template(more: dict[str, Any], expected: str) -> None:
    source = "{{ reasoning_effort }} {{ enable_thinking }}"
    assert ids_of({"messages": [{"role": "user", "content": "a"}]} | more, source) == CharTokenizer().encode(expected)
