"""Bytes and pictures among a call's arguments, on their way to the engine's process: apart, their places marked."""

from __future__ import annotations

import io
from typing import Any, Final

from ..errors import RequestRejected

_MARK: Final = "\0bytes"


def without_bytes(arguments: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
    """Arguments that JSON can hold, and all bytes that were in them, as `with_bytes` puts them together again.

    A PIL image becomes the bytes of a PNG. Raises RequestRejected, with its type, for what is neither.
    """
    parts: list[bytes] = []
    size = 0

    def apart(name: str, value: Any) -> Any:
        nonlocal size
        if value is None or isinstance(value, (str, int, float)):
            return value
        if isinstance(value, dict):
            # JSON writes the others as text, which SGLang reads.
            if any(key == _MARK or not (key is None or isinstance(key, (str, int, float))) for key in value):
                raise RequestRejected(f"{name} holds an object with keys that can't be passed on.", param=name)
            return {key: apart(name, item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [apart(name, item) for item in value]
        data = _data(name, value)
        mark = {_MARK: [size, size + len(data)]}
        parts.append(data)
        size += len(data)
        return mark

    return {name: apart(name, value) for name, value in arguments.items()}, b"".join(parts)


def with_bytes(arguments: dict[str, Any], blob: bytes) -> dict[str, Any]:
    """The arguments that `without_bytes` was given, tuples and pictures apart."""

    def put(value: Any) -> Any:
        if isinstance(value, dict):
            if (place := value.get(_MARK)) is not None:
                return blob[place[0] : place[1]]
            return {key: put(item) for key, item in value.items()}
        return [put(item) for item in value] if isinstance(value, list) else value

    return {name: put(value) for name, value in arguments.items()}


def _data(name: str, value: Any) -> bytes:
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    if type(value).__module__.partition(".")[0] == "PIL" and hasattr(value, "save"):
        file = io.BytesIO()
        try:
            value.save(file, "PNG")
        except (OSError, ValueError) as exc:
            raise RequestRejected(f"{name} holds an image that can't be passed on: {exc}.", param=name) from exc
        return file.getvalue()
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    raise RequestRejected(
        f"{name} holds a {kind}, which can't be passed to the engine's process: give a path, a URL, base64 or bytes.",
        param=name,
    )
