"""Where a relay writes to when something between it and the server has wrapped `send`: a task that sends."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol


class Body(Protocol):
    """A streamed response's body; written to from callbacks, so that no part of it costs a task."""

    @property
    def paused(self) -> bool:
        """Nothing should be written now; `on_writable` tells when that is over."""

    def write(self, data: bytes) -> None:
        """Send a part, not empty; nothing happens when the client is gone."""

    def on_writable(self, callback: Callable[[], None] | None) -> None:
        """Call back whenever `paused` is over."""

    async def flush(self) -> None:
        """Until all that was written is with the server."""


class SendingBody:
    """A body that awaits `write` of an exchange, one part after the other."""

    def __init__(self, write: Callable[[bytes], Awaitable[None]]) -> None:
        self._write = write
        self._pending = b""
        self._task: asyncio.Task[None] | None = None
        self._on_writable: Callable[[], None] | None = None
        self._failure: Exception | None = None

    @property
    def paused(self) -> bool:
        """A part is on its way."""
        return self._task is not None

    def write(self, data: bytes) -> None:
        """Send a part; raises what sending an earlier one raised."""
        if self._failure is not None:
            raise self._failure
        self._pending += data
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    def on_writable(self, callback: Callable[[], None] | None) -> None:
        """Call back when no part is on its way."""
        self._on_writable = callback

    async def flush(self) -> None:
        """Until no part is on its way; raises what sending raised."""
        while self._task is not None:
            await asyncio.shield(self._task)
        if self._failure is not None:
            raise self._failure

    async def _run(self) -> None:
        try:
            while self._pending:
                data, self._pending = self._pending, b""
                await self._write(data)
        except Exception as exc:  # It is the relay's, which asks with the next part or at its end.
            self._failure = exc
        finally:
            self._task = None
        if self._on_writable is not None:
            self._on_writable()
