"""Ends a handler's work as soon as its client is gone, also while nothing is being written."""

from __future__ import annotations

import asyncio
from types import TracebackType

from .exchange import ClientGone, Exchange


class UntilDisconnect:
    """`async with`: cancels the block when the client disconnects, and then raises ClientGone.

    Built like asyncio.timeout, so that a cancellation from elsewhere passes through untouched. Leave the block before
    the response's last message: from then on servers report a disconnect for every client.
    """

    __slots__ = ("_cancelling", "_exchange", "_gone", "_task", "_watch")

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._gone = False
        self._watch: asyncio.Task[None] | None = None

    async def __aenter__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._cancelling = task.cancelling()
        if self._exchange.direct is None:
            self._watch = asyncio.create_task(self._wait())
        else:
            self._exchange.direct.on_gone(self._on_gone)

    async def _wait(self) -> None:
        while (await self._exchange.receive())["type"] != "http.disconnect":
            pass
        self._on_gone()

    def _on_gone(self) -> None:
        self._gone = True
        self._task.cancel()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._watch is not None:
            self._watch.cancel()
        elif self._exchange.direct is not None:
            self._exchange.direct.on_gone(None)
        if not self._gone:
            return
        if self._task.uncancel() <= self._cancelling and (kind is None or issubclass(kind, asyncio.CancelledError)):
            raise ClientGone from error
