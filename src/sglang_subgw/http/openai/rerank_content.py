"""What is ranked: texts, or lists of text, image and video parts."""

from __future__ import annotations

from typing import Any

from ...errors import RequestRejected
from ..core.fields import list_of, mapping, string, wrong

type Part = dict[str, Any]
type Content = str | list[Part]

_MEDIA = {"image_url": "image", "video_url": "video"}


def read_content(value: Any, name: str) -> Content:
    """A check for the table of fields."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise wrong(name, "a string or an array of content parts", value)
    parts: list[Part] = list_of(_part)(value, name)
    return parts


def _part(value: Any, name: str) -> Part:
    part = mapping(value, name)
    kind = part.get("type")
    if kind == "text":
        return {"type": "text", "text": string(part.get("text"), f"{name}.text")}
    if kind in _MEDIA:
        return {"type": kind, kind: {"url": string(mapping(part.get(kind), f"{name}.{kind}").get("url"), name)}}
    raise RequestRejected(
        f"Content part {name!r} must be of type 'text', 'image_url' or 'video_url'.", param=f"{name}.type"
    )


def is_multimodal(*contents: Content) -> bool:
    """SGLang's rule: whatever is given in parts."""
    return any(isinstance(content, list) for content in contents)


def text_of(content: Content) -> str:
    """The text parts, in one."""
    if isinstance(content, str):
        return content
    return " ".join(part["text"] for part in content if part["type"] == "text")


def with_media(content: Content, images: list[str], videos: list[str]) -> list[Part]:
    """The parts as a template has them; their images and videos are added to the lists."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    parts: list[Part] = []
    for part in content:
        kind = part["type"]
        if kind == "text":
            parts.append(part)
        else:
            (images if kind == "image_url" else videos).append(part[kind]["url"])
            parts.append({"type": _MEDIA[kind]})
    return parts
