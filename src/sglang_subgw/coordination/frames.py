"""Frames between workers and the engine's coordinator: two lengths, a JSON object, bytes that JSON has no place for."""

from __future__ import annotations

import asyncio
import json
import struct
from typing import Any, Final

MAX_JSON: Final = 64 * 2**20
_LENGTHS: Final = struct.Struct(">IQ")


async def read(reader: asyncio.StreamReader) -> tuple[dict[str, Any], bytes]:
    """The next frame; raises EOFError at the end, ValueError for what isn't one, or OSError."""
    try:
        json_size, blob_size = _LENGTHS.unpack(await reader.readexactly(_LENGTHS.size))
        if json_size > MAX_JSON:
            raise ValueError(f"a frame with {json_size} bytes of JSON is announced")
        message = json.loads(await reader.readexactly(json_size))
        blob = await reader.readexactly(blob_size) if blob_size else b""
    except asyncio.IncompleteReadError:
        raise EOFError("the connection ended") from None
    if not isinstance(message, dict):
        raise ValueError("a frame holds no object")
    return message, blob


def write(writer: asyncio.StreamWriter, message: dict[str, Any], blob: bytes = b"") -> None:
    """Send one frame, without waiting for it; raises ValueError or TypeError, with nothing sent, when that can't be."""
    # ASCII only: half a surrogate pair has no UTF-8.
    body = json.dumps(message, separators=(",", ":")).encode()
    if len(body) > MAX_JSON:
        raise ValueError(f"{len(body)} bytes of JSON are more than fit in a frame")
    writer.write(_LENGTHS.pack(len(body), len(blob)) + body)
    if blob:
        writer.write(blob)
