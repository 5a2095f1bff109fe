"""Chat messages as a template gets them: SGLang's checks and clean-up of what the client sent."""

from __future__ import annotations

from typing import Any, Final

from ...errors import RequestRejected
from ..core.body import json_type
from ..core.fields import at_least, boolean, list_of, mapping, one_of, string, wrong
from ..core.jsonio import loads

_ROLES: Final = ("system", "assistant", "tool", "function", "developer", "latest_reminder", "root")
_OPTIONAL: Final = {
    "tool_call_id": string,
    "name": string,
    "phase": one_of("commentary", "final_answer"),
    "reasoning_content": string,
    "prefix": boolean,
}
"""Keys of a message, beside role, content and tool_calls, that a template may read."""

type Message = dict[str, Any]


def read_messages(value: Any, name: str) -> list[Message]:
    """Checked messages, content still as sent; a check for the table of fields."""
    if value == []:
        raise RequestRejected("Messages cannot be empty.", param=name)
    if not isinstance(value, list):
        raise wrong(name, "an array", value)
    return [_read_message(message, f"{name}[{position}]") for position, message in enumerate(value)]


def _read_message(value: Any, name: str) -> Message:
    if not isinstance(value, dict):
        raise wrong(name, "an object", value)
    role = value.get("role")
    if not isinstance(role, str):
        raise RequestRejected(f"'{name}.role' must be a string.", param=f"{name}.role")
    if role != "user":
        role = role.lower()
        if role not in _ROLES:
            allowed = ", ".join(map(repr, (*_ROLES, "user")))
            raise RequestRejected(f"'{name}.role' must be one of {allowed}.", param=f"{name}.role")
    message: Message = {"role": role, "content": _read_content(value.get("content"), f"{name}.content", role)}
    for key, item in value.items():
        where = f"{name}.{key}"
        if key in ("role", "content") or item is None:
            continue
        if role == "user" and key == "name":
            # OpenAI's field; SGLang's templates never see it.
            string(item, where)
        elif role != "user" and key == "tool_calls":
            message[key] = _read_tool_calls(item, where)
        elif role != "user" and key in _OPTIONAL:
            message[key] = _OPTIONAL[key](item, where)
        elif item != []:
            raise RequestRejected(f"Field {where!r} is not supported.", param=where)
    order = ("role", "content", "tool_call_id", "name", "phase", "reasoning_content", "tool_calls", "prefix")
    return {key: message[key] for key in order if key in message}


def _read_content(value: Any, name: str, role: str) -> str | list[dict[str, Any]]:
    if value is None and role != "user":
        return ""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise wrong(name, "a string or an array of content parts", value)
    return [_read_part(part, f"{name}[{position}]") for position, part in enumerate(value)]


def _read_part(value: Any, name: str) -> dict[str, Any]:
    kind = mapping(value, name).get("type")
    if kind != "text":
        shown = repr(kind) if isinstance(kind, str) else json_type(kind)
        raise RequestRejected(
            f"Content part {name!r} of type {shown} is not supported: only text parts are implemented.", param=name
        )
    for key, item in value.items():
        if key not in ("type", "text") and item is not None:
            raise RequestRejected(f"Field '{name}.{key}' is not supported.", param=f"{name}.{key}")
    return {"type": "text", "text": string(value.get("text"), f"{name}.text")}


def _read_tool_calls(value: Any, name: str) -> list[dict[str, Any]]:
    calls: list[dict[str, Any]] = list_of(_read_tool_call)(value, name)
    return calls


def _read_tool_call(value: Any, name: str) -> dict[str, Any]:
    function = value.get("function") if isinstance(value, dict) else None
    if not isinstance(function, dict):
        raise RequestRejected(f"{name!r} must be an object with a 'function' object.", param=name)
    index = value.get("index")
    identity = value.get("id")
    label = function.get("name")
    return {
        "id": None if identity is None else string(identity, f"{name}.id"),
        "index": None if index is None else at_least(0)(index, f"{name}.index"),
        "type": one_of("function")(value.get("type", "function"), f"{name}.type"),
        "function": {
            "name": None if label is None else string(label, f"{name}.function.name"),
            "arguments": _read_arguments(function.get("arguments"), f"{name}.function.arguments"),
        },
    }


def _read_arguments(value: Any, name: str) -> dict[str, Any] | None:
    if isinstance(value, str):
        try:
            value = loads(value.encode())
        except (ValueError, RecursionError):
            raise RequestRejected("Assistant tool call function.arguments must be valid JSON.", param=name) from None
        if not isinstance(value, dict):
            raise RequestRejected("Assistant tool call function.arguments must be a JSON object.", param=name)
    if value is not None and not isinstance(value, dict):
        raise wrong(name, "a string or an object", value)
    return value


def for_template(
    messages: list[Message], content_format: str, continue_final_message: bool
) -> tuple[list[Message], str]:
    """What the template gets, and the text that the answer is to go on from.

    A last message of the assistant is either that text or, as SGLang does it, becomes the user's.
    """
    prepared = [_flatten(message, content_format) for message in messages]
    last = prepared[-1]
    if last["role"] != "assistant" or not isinstance(last["content"], str):
        return prepared, ""
    if continue_final_message:
        return prepared[:-1], last["content"]
    return [*prepared[:-1], {"role": "user", "content": last["content"]}], ""


def _flatten(message: Message, content_format: str) -> Message:
    content = message["content"]
    if not isinstance(content, list):
        return message
    if content_format == "string":
        return {**message, "content": " ".join(part["text"] for part in content)}
    rest = {key: item for key, item in message.items() if key != "content"}
    return {**rest, "content": " ".join(part["text"] for part in content) if message["role"] == "tool" else content}
