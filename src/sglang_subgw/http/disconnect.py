"""Ends a handler's work as soon as its client is gone, also while nothing is being written."""

from __future__ import annotations

import asyncio
from types import TracebackType

from starlette.types import Receive

from .exchange import ClientGone


class UntilDisconnect:
    """`async with`: cancels the block when the client disconnects, and then raises ClientGone.

    Built like asyncio.timeout, so that a cancellation from elsewhere passes through untouched. Leave the block before
    the response's last message: from then on servers report a disconnect for every client.
    """

    __slots__ = ("_cancelling", "_gone", "_receive", "_task", "_watch")

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._gone = False

    async def __aenter__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._cancelling = task.cancelling()
        self._watch = asyncio.create_task(self._wait())

    async def _wait(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._gone = True
        self._task.cancel()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._watch.cancel()
        if not self._gone:
            return
        if self._task.uncancel() <= self._cancelling and (kind is None or issubclass(kind, asyncio.CancelledError)):
            raise ClientGone from error
