"""Every fault of a client is a 4xx with a message that names it, and the next good request is answered."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from support.http_fakes import FakeEngine, app_of, ask, client_of, contract

CHAT = "/v1/chat/completions"
USER = [{"role": "user", "content": "Hi"}]

BAD_BODIES: list[tuple[bytes, str]] = [
    (b"", "empty"),
    (b"  ", "empty"),
    (b"{", "not valid JSON"),
    (b"nonsense", "not valid JSON"),
    (b"[]", "must be a JSON object, not an array"),
    (b"null", "must be a JSON object, not null"),
    (b'"text"', "must be a JSON object, not a string"),
    (b"1", "must be a JSON object, not a number"),
    (b'{"text": "\xff"}', "valid"),
    (b'{"text": "\\ud800"}', "valid"),
    (b'{"text": NaN}', "not valid JSON"),
    (b'{"text": 1e999}', "not valid JSON"),
    (b'{"text": ' + b"1" * 5000 + b"}", "not valid JSON"),
    (b"[" * 2**20, "nested too deeply"),
    (b'{"a":' * 2**18, "nested too deeply"),
]


@pytest.mark.parametrize("path", ["/generate", "/v1/completions", CHAT])
def test_bad_bodies(path: str) -> None:
    async def run() -> None:
        engine = FakeEngine()
        async with client_of(engine) as client:
            for data, message in BAD_BODIES:
                answer = await client.post(path, content=data, headers={"content-type": "application/json"})
                assert answer.status_code == 400, data[:40]
                body = answer.json()
                text = body["error"]["message"] if path == "/generate" else body["message"]
                assert message in text, data[:40]
            good = {"text": "a"} if path == "/generate" else {"prompt": "a"} if path != CHAT else {"messages": USER}
            assert (await client.post(path, json=good)).status_code == 200

    asyncio.run(run())


BAD_FIELDS: list[tuple[str, dict[str, Any], str]] = [
    ("/generate", {"text": 1}, "'text' must be a string or an array of strings, not a number."),
    ("/generate", {"text": ["a", None]}, "'text[1]' must be a string, not null."),
    ("/generate", {"text": []}, "'text' must not be an empty array."),
    ("/generate", {"input_ids": ["a"]}, "'input_ids[0]' must be an integer, not a string."),
    ("/generate", {"input_ids": [True]}, "'input_ids[0]' must be an integer, not a boolean."),
    ("/generate", {"input_ids": [[1], 2]}, "'input_ids[1]' must be an array of token ids, not a number."),
    ("/generate", {"input_ids": [2**70]}, "'input_ids[0]' must fit in 64 bits."),
    ("/generate", {"text": "a", "stream": "yes"}, "'stream' must be a boolean, not a string."),
    ("/generate", {"text": "a", "sampling_params": 3}, "'sampling_params' must be an object, not a number."),
    ("/generate", {"text": "a", "sampling_parms": {}}, "Did you mean 'sampling_params'?"),
    ("/generate", {"text": "a", "image_data": "x"}, "Field 'image_data' is not supported: only text"),
    ("/generate", {"text": "a", "return_hidden_states": "first"}, "must be one of True, False, 'last', not 'first'."),
    ("/generate", {"text": "a", "sampling_params": {"temperature": -1}}, "temperature"),
    ("/v1/completions", {}, "Field 'prompt' is required."),
    ("/v1/completions", {"prompt": ""}, "Prompt cannot be empty"),
    ("/v1/completions", {"prompt": ["", ""]}, "Prompt cannot be empty"),
    ("/v1/completions", {"prompt": {}}, "'prompt' must be"),
    ("/v1/completions", {"prompt": "a", "max_tokens": -1}, "'max_tokens' must be at least 1, not -1."),
    ("/v1/completions", {"prompt": "a", "max_tokens": 2**70}, "'max_tokens' must fit in 64 bits."),
    ("/v1/completions", {"prompt": "a", "max_tokens": 1.5}, "'max_tokens' must be an integer, not a number."),
    ("/v1/completions", {"prompt": "a", "n": 0}, "'n' must be at least 1, not 0."),
    ("/v1/completions", {"prompt": "a", "temperature": -1}, "temperature"),
    ("/v1/completions", {"prompt": "a", "temperature": "hot"}, "'temperature' must be a number, not a string."),
    ("/v1/completions", {"prompt": "a", "best_of": 3}, "Field 'best_of' is not supported"),
    ("/v1/completions", {"prompt": "a", "suffix": "b"}, "Field 'suffix' is not supported"),
    ("/v1/completions", {"prompt": "a", "stream_options": {"x": 1}}, "'stream_options.x' is not supported."),
    ("/v1/completions", {"prompt": "a", "logit_bias": {"1": "x"}}, "'logit_bias.1' must be a number"),
    ("/v1/completions", {"prompt": "a", "response_format": {"type": "xml"}}, "'response_format.type' must be one of"),
    ("/v1/completions", {"prompt": "a", "response_format": {"type": "json_schema"}}, "schema_ is required"),
    (CHAT, {"messages": []}, "Messages cannot be empty."),
    (CHAT, {"messages": "Hi"}, "'messages' must be an array, not a string."),
    (CHAT, {"messages": [1]}, "'messages[0]' must be an object, not a number."),
    (CHAT, {"messages": [{"role": "wizard", "content": ""}]}, "'messages[0].role' must be one of 'system'"),
    (CHAT, {"messages": [{"content": ""}]}, "'messages[0].role' must be a string."),
    (CHAT, {"messages": [{"role": "user"}]}, "'messages[0].content' must be a string or an array of content parts"),
    (CHAT, {"messages": [{"role": "user", "content": "a", "mood": 1}]}, "'messages[0].mood' is not supported."),
    (
        CHAT,
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
        "'messages[0].content[0]' of type 'image_url' is not supported",
    ),
    (CHAT, {"messages": USER, "tools": [{"type": "function"}]}, "Field 'tools' is not supported"),
    (CHAT, {"messages": USER, "tool_choice": "required"}, "Field 'tool_choice' is not supported"),
    (CHAT, {"messages": USER, "chat_template_kwargs": {"chat_template": "x"}}, "chat_template is not allowed."),
    (CHAT, {"messages": USER, "chat_template_kwargs": {"messages": []}}, "can't set 'messages'"),
    (CHAT, {"messages": USER, "reasoning_effort": "huge"}, "'reasoning_effort' must be one of"),
    (CHAT, {"messages": USER, "reasoning_effort": 2}, "'reasoning_effort' must be from 0.0 to 0.99"),
    (CHAT, {"messages": USER, "metadata": {"a": "b"}}, "Field 'metadata' is not supported"),
    (CHAT, {"messages": USER, "stream": True, "return_token_ids": True}, "not supported with streaming"),
    (
        CHAT,
        {"messages": [{"role": "assistant", "tool_calls": [{"function": {"arguments": "{"}}]}]},
        "function.arguments must be valid JSON.",
    ),
    (
        CHAT,
        {"messages": [{"role": "assistant", "tool_calls": [{"function": {"arguments": "[]"}}]}]},
        "function.arguments must be a JSON object.",
    ),
]


@pytest.mark.parametrize(("path", "body", "message"), BAD_FIELDS, ids=lambda value: str(value)[:60])
def test_bad_fields(path: str, body: dict[str, Any], message: str) -> None:
    answer = ask(path, body)
    assert answer.status_code == 400
    data = answer.json()
    if path == "/generate":
        assert message in data["error"]["message"]
    else:
        assert message in data["message"]
        assert data == data | {"object": "error", "code": 400}


@pytest.mark.parametrize("body", [{"text": "a", "image_data": None}, {"text": "a", "input_embeds": []}])
def test_a_refused_field_may_be_there_without_a_value(body: dict[str, Any]) -> None:
    assert ask("/generate", body).status_code == 200


@pytest.mark.parametrize(
    "more",
    [
        {"tools": None, "tool_choice": "none"},
        {"tools": [], "tool_choice": "auto", "parallel_tool_calls": True},
        {"temperature": None, "max_tokens": None, "stop": None, "response_format": {"type": "text"}},
        {"modalities": ["text"], "store": False, "user": "me"},
    ],
    ids=str,
)
def test_harmless_values_pass(more: dict[str, Any]) -> None:
    assert ask(CHAT, {"messages": USER} | more).status_code == 200


@pytest.mark.parametrize(("path", "body"), [("/v1/completions", {"prompt": "a"}), (CHAT, {"messages": USER})])
def test_an_unknown_model_is_a_404(path: str, body: dict[str, Any]) -> None:
    answer = ask(path, body | {"model": "gpt-9"})
    assert answer.status_code == 404
    assert answer.json() == {
        "object": "error",
        "message": "The model 'gpt-9' does not exist",
        "type": "NotFoundError",
        "param": "model",
        "code": 404,
    }


def test_an_adapter_goes_to_the_engine_only_where_lora_is_on() -> None:
    assert ask("/v1/completions", {"prompt": "a", "model": "demo:x"}).status_code == 404

    async def run() -> None:
        engine = FakeEngine(contract(enable_lora=True))
        async with client_of(engine) as client:
            assert (await client.post("/v1/completions", json={"prompt": "a", "model": "demo:x"})).status_code == 200
        assert engine.requests[0].lora_path == "x"

    asyncio.run(run())


def test_openai_routes_want_json_by_its_name() -> None:
    answer = ask("/v1/completions", method="POST", content=b'{"prompt": "a"}')
    assert (answer.status_code, answer.json()["message"]) == (
        400,
        "Unsupported Media Type: Only 'application/json' is allowed",
    )
    assert ask("/generate", method="POST", content=b'{"text": "a"}').status_code == 200


def test_a_compressed_body_is_a_415() -> None:
    answer = ask("/generate", method="POST", content=b"x", headers={"content-encoding": "gzip"})
    assert answer.status_code == 415
    assert "uncompressed" in answer.json()["error"]["message"]


def test_a_bad_rank_header_is_refused_and_a_good_one_wins() -> None:
    answer = ask("/v1/completions", {"prompt": "a"}, headers={"x-data-parallel-rank": "one"})
    assert (answer.status_code, answer.json()["message"]) == (
        400,
        "Invalid X-Data-Parallel-Rank header: must be an integer, got 'one'",
    )

    async def run() -> None:
        engine = FakeEngine()
        headers = {"x-data-parallel-rank": "1", "x-smg-routing-key": "k"}
        async with client_of(engine) as client:
            await client.post("/v1/completions", json={"prompt": "a", "routed_dp_rank": 0}, headers=headers)
        assert (engine.requests[0].routed_dp_rank, engine.requests[0].routing_key) == (1, "k")

    asyncio.run(run())


@pytest.mark.parametrize("announced", [True, False])
def test_a_body_over_the_limit_is_a_413_and_is_not_read_to_its_end(announced: bool) -> None:
    reads = 0

    async def receive() -> dict[str, Any]:
        nonlocal reads
        reads += 1
        return {"type": "http.request", "body": b"x" * 600, "more_body": True}

    async def run() -> list[dict[str, Any]]:
        sent: list[dict[str, Any]] = []

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        headers = [(b"content-length", b"100000")] if announced else []
        scope = {"type": "http", "method": "POST", "path": "/generate", "query_string": b"", "headers": headers}
        await app_of(FakeEngine(), max_body_bytes=1000)(scope, receive, send)
        return sent

    start, body = asyncio.run(run())
    assert start["status"] == 413
    assert (b"connection", b"close") in start["headers"]
    assert "1000 bytes" in json.loads(body["body"])["error"]["message"]
    assert reads == (0 if announced else 2)


def test_an_error_of_our_own_is_a_500_that_keeps_serving(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        engine = FakeEngine()
        engine.tokenizer.encode_all = None  # type: ignore[assignment]
        async with client_of(engine) as client:
            answer = await client.post(CHAT, json={"messages": USER})
            assert (answer.status_code, answer.json()["type"]) == (500, "InternalServerError")
            assert (await client.post("/generate", json={"text": "a"})).status_code == 200

    asyncio.run(run())
    assert "request failed" in caplog.text
