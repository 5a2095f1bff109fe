"""Past batches of KV cache events, asked of a scheduler's replay endpoint."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Final

import zmq

from ..wire.async_socket import AsyncSocket
from .frames import END_OF_REPLAY, number_frame

_SILENCE_SECONDS: Final = 3.0
"""SGLang's publisher looks for requests ten times a second."""


async def replay(endpoint: str, first: int, end: int | None = None) -> AsyncGenerator[tuple[int, bytes]]:
    """Numbers, from `first` to before `end`, and batches, as far as they are still kept; nothing if nobody answers."""
    at = first
    progress = True
    while progress:
        progress = False
        socket = AsyncSocket(zmq.DEALER, endpoint)
        try:
            socket.send([b"", number_frame(at)])
            while True:
                async with asyncio.timeout(_SILENCE_SECONDS):
                    *_, number_bytes, batch = await socket.receive()
                number = int.from_bytes(number_bytes)
                if number_bytes == END_OF_REPLAY or (end is not None and number >= end):
                    return
                if number > at and progress:
                    # More than a zmq queue takes was sent at once, and a part of it dropped: it can be asked for again.
                    break
                if number >= at:
                    yield number, batch
                    at, progress = number + 1, True
        except TimeoutError:
            continue
        finally:
            socket.close()
