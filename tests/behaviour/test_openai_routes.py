"""OpenAI's routes end to end, plain and streamed."""

from __future__ import annotations

from support.stack import Stack

CHAT = {"model": "simulated-model", "messages": [{"role": "user", "content": "hello"}]}


def completion(**fields):
    return {"model": "simulated-model", "prompt": "abcdef", "max_tokens": 8, **fields}


def test_models(served: Stack):
    with served.client() as one:
        assert [model["id"] for model in one.get("/v1/models").json()["data"]] == ["simulated-model"]


def test_completion(served: Stack):
    answer = served.post("/v1/completions", completion()).json()
    assert answer["object"] == "text_completion"
    assert answer["choices"][0]["text"] == "abcdefab"
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"] == answer["usage"] | {"prompt_tokens": 6, "completion_tokens": 8, "total_tokens": 14}


def test_completion_of_several_prompts_and_samples(served: Stack):
    answer = served.post("/v1/completions", completion(prompt=["abc", "xyz"], n=2, max_tokens=4)).json()
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    assert [choice["text"] for choice in answer["choices"]] == ["abca", "abca", "xyzx", "xyzx"]


def test_completion_stream_with_usage(served: Stack):
    chunks = served.stream("/v1/completions", completion(stream_options={"include_usage": True}))
    assert "".join(c["choices"][0]["text"] for c in chunks if c["choices"]) == "abcdefab"
    assert chunks[-1]["usage"]["completion_tokens"] == 8


def test_completion_echo_and_logprobs(served: Stack):
    answer = served.post("/v1/completions", completion(echo=True, logprobs=2, max_tokens=2)).json()
    choice = answer["choices"][0]
    assert choice["text"] == "abcdefab"
    assert "".join(choice["logprobs"]["tokens"]) == "abcdefab"


def test_chat(served: Stack):
    answer = served.post("/v1/chat/completions", CHAT).json()
    assert answer["object"] == "chat.completion"
    choice = answer["choices"][0]
    assert choice["message"]["role"] == "assistant"
    assert choice["message"]["content"] == "hello"
    assert choice["finish_reason"] == "stop"
    # The template's four special tokens and the one token of the merged word.
    assert answer["usage"]["prompt_tokens"] == 4


def test_chat_stream(served: Stack):
    chunks = served.stream("/v1/chat/completions", {**CHAT, "max_tokens": 3, "stream_options": {"include_usage": True}})
    assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
    deltas = [c["choices"][0]["delta"].get("content") or "" for c in chunks if c["choices"]]
    assert "".join(deltas) == "hello" * 3
    assert [c["choices"][0]["finish_reason"] for c in chunks if c["choices"]][-1] == "length"
    assert chunks[-1]["usage"]["total_tokens"] == 7
    assert len({chunk["id"] for chunk in chunks}) == 1


def test_chat_logprobs(served: Stack):
    answer = served.post("/v1/chat/completions", {**CHAT, "logprobs": True, "top_logprobs": 2, "max_tokens": 2}).json()
    content = answer["choices"][0]["logprobs"]["content"]
    assert [entry["token"] for entry in content] == ["hello", "hello"]
    assert all(len(entry["top_logprobs"]) == 2 for entry in content)


def test_chat_with_several_samples_counts_the_prompt_once(served: Stack):
    answer = served.post("/v1/chat/completions", {**CHAT, "n": 3, "max_tokens": 2}).json()
    assert [choice["message"]["content"] for choice in answer["choices"]] == ["hellohello"] * 3
    assert answer["usage"] == answer["usage"] | {"prompt_tokens": 4, "completion_tokens": 6}


def test_chat_response_format(served: Stack):
    answer = served.post("/v1/chat/completions", {**CHAT, "response_format": {"type": "json_object"}}).json()
    assert answer["choices"][0]["message"]["content"] == "{}"


def test_unknown_model_is_not_found(served: Stack):
    response = served.post("/v1/chat/completions", {**CHAT, "model": "other"})
    assert response.status_code in (400, 404)
    assert "other" in response.json()["message"] if "message" in response.json() else "other" in response.text
