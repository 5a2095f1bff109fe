"""Messages reach templates as SGLang cleans them up."""

from __future__ import annotations

from typing import Any

from sglang_subgw.http.openai.messages import for_template, read_messages

PARTS = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]


def prepared(messages: list[dict[str, Any]], content_format: str = "string", go_on: bool = False) -> Any:
    return for_template(read_messages(messages, "messages"), content_format, go_on)


def test_parts_are_joined_unless_the_template_takes_them() -> None:
    assert prepared([{"role": "user", "content": PARTS}]) == ([{"role": "user", "content": "a b"}], "")
    assert prepared([{"role": "user", "content": PARTS}], "openai")[0] == [{"role": "user", "content": PARTS}]
    assert prepared([{"role": "tool", "content": PARTS}], "openai")[0][0]["content"] == "a b"


def test_empty_keys_are_dropped_and_roles_are_lower_case() -> None:
    message = {"role": "System", "content": None, "name": None, "tool_calls": None, "refusal": None, "annotations": []}
    assert prepared([message])[0] == [{"role": "system", "content": ""}]
    assert prepared([{"role": "user", "content": "a", "name": "me"}])[0] == [{"role": "user", "content": "a"}]


def test_arguments_of_tool_calls_are_parsed() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    [message, _], _ = prepared([{"role": "assistant", "tool_calls": [call]}, {"role": "user", "content": "a"}])
    assert message == {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {"id": "1", "index": None, "type": "function", "function": {"name": "f", "arguments": {"a": 1}}}
        ],
    }


def test_a_last_assistant_message_is_continued_or_becomes_the_users() -> None:
    chat = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    assert prepared(chat, go_on=True) == (chat[:1], "b")
    assert prepared(chat) == ([chat[0], {"role": "user", "content": "b"}], "")
