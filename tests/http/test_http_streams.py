"""However the engine splits its text, the deltas of a stream put it together again."""

from __future__ import annotations

import itertools
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from support.http_fakes import FakeEngine, ask, events_of, saying

texts = st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=6), min_size=1, max_size=8)


def stream(path: str, body: dict[str, Any], chunks: list[str]) -> list[Any]:
    answer = ask(path, body | {"stream": True}, lambda: FakeEngine(script=saying(*chunks)))
    assert answer.status_code == 200
    *events, done = events_of(answer)
    assert done == "[DONE]"
    return events


@settings(max_examples=60, deadline=None)
@given(texts, st.booleans())
def test_chat(chunks: list[str], logprobs: bool) -> None:
    body = {
        "messages": [{"role": "user", "content": "x"}],
        "n": 2,
        "logprobs": logprobs,
        "stream_options": {"include_usage": True},
    }
    events = stream("/v1/chat/completions", body, chunks)
    usage = events.pop()
    assert usage["choices"] == []
    tokens = sum(map(len, chunks))
    assert usage["usage"]["prompt_tokens"] == 5
    assert usage["usage"]["completion_tokens"] == 2 * tokens
    for index in range(2):
        choices = [event["choices"][0] for event in events if event["choices"][0]["index"] == index]
        first, *middle, last = choices
        assert first["delta"] == {"reasoning_content": None, "role": "assistant", "content": ""}
        assert "".join(choice["delta"]["content"] for choice in middle) == "".join(chunks)
        assert (last["finish_reason"], last["matched_stop"]) == ("stop", 2)
        assert all(choice["finish_reason"] is None for choice in (first, *middle))
        if logprobs:
            assert sum(len(choice["logprobs"]["content"]) for choice in middle) == tokens


@settings(max_examples=60, deadline=None)
@given(texts, st.booleans(), st.sampled_from([None, 0, 2]))
def test_completions(chunks: list[str], echo: bool, logprobs: int | None) -> None:
    body = {"prompt": ["p", "q"], "n": 2, "echo": echo, "logprobs": logprobs}
    events = stream("/v1/completions", body, chunks)
    for index in range(4):
        choices = [event["choices"][0] for event in events if event["choices"][0]["index"] == index]
        prompt = "ppqq"[index] if echo else ""
        assert "".join(choice["text"] for choice in choices) == prompt + "".join(chunks)
        assert [choice["finish_reason"] for choice in choices[:-1]] == [None] * (len(choices) - 1)
        assert choices[-1]["finish_reason"] == "stop"
        if logprobs is not None:
            found = sum(len(choice["logprobs"]["tokens"]) for choice in choices if choice["logprobs"])
            assert found == sum(map(len, chunks))


@settings(max_examples=30, deadline=None)
@given(texts)
def test_generate(chunks: list[str]) -> None:
    events = stream("/generate", {"text": ["a", "b"]}, chunks)
    for index in range(2):
        found = [event["text"] for event in events if event["index"] == index]
        assert found[-1] == "".join(chunks)
        assert all(later.startswith(earlier) for earlier, later in itertools.pairwise(found))
