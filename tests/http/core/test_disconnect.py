"""A block that lasts until its client leaves: cancellations and errors on its way."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from sglang_subgw.http.core.disconnect import UntilDisconnect
from sglang_subgw.http.core.exchange import ClientGone, Exchange


def exchange(receive: Any) -> Exchange:
    """Of a server without extensions."""
    return Exchange({"type": "http", "headers": []}, receive, None, [])


def test_a_cancellation_from_elsewhere_passes_through() -> None:
    async def never() -> Any:
        await asyncio.Event().wait()

    async def work() -> None:
        async with UntilDisconnect(exchange(never)):
            await asyncio.Event().wait()

    async def run() -> None:
        task = asyncio.create_task(work())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(run())


def test_a_disconnect_that_comes_with_the_result_does_not_linger() -> None:
    async def gone() -> Any:
        return {"type": "http.disconnect"}

    async def run() -> None:
        with pytest.raises(ClientGone):
            async with UntilDisconnect(exchange(gone)):
                await asyncio.sleep(0)
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0
        await asyncio.sleep(0)

    asyncio.run(run())


def test_an_error_of_the_block_wins_over_the_disconnect() -> None:
    leave = asyncio.Event()

    async def gone() -> Any:
        await leave.wait()
        return {"type": "http.disconnect"}

    async def run() -> None:
        async with UntilDisconnect(exchange(gone)):
            await asyncio.sleep(0)
            leave.set()
            raise KeyError

    with pytest.raises(KeyError):
        asyncio.run(run())
