"""Coroutine functions for --serve: one that does as it should, and those that don't."""

from __future__ import annotations

import asyncio
import functools
import os
from pathlib import Path
from typing import Any

from sglang_subgw.errors import EngineUnavailable

NOT_CALLABLE = 7
END = "end"
"""The note by which the test lets the first life of shard 1 end."""


def note(shard: Any, text: str) -> None:
    """Tell the test, in the file of this shard's life."""
    with Path(os.environ["SUBGW_TEST_NOTES"], f"{shard.index}-{shard.generation}").open("a") as file:
        file.write(text + "\n")


async def serve(engine: Any, shard: Any) -> None:
    """Asks the engine something, and ends when it is to."""
    out = await engine.async_generate("abc", {"max_new_tokens": 3})
    note(shard, out["text"])
    assert not engine.draining
    await engine.until_draining()
    assert engine.draining
    note(shard, "drained")


class Worker:
    """What serves is a method."""

    async def serve(self, engine: Any, shard: Any) -> None:
        await serve(engine, shard)

    async def __call__(self, engine: Any, shard: Any) -> None:
        await serve(engine, shard)


worker = Worker()
bound = functools.partial(serve)


async def returns(engine: Any, shard: Any) -> None:
    """Is through before it serves."""


async def raises(engine: Any, shard: Any) -> None:
    """Can't start."""
    raise LookupError("no place to listen")


async def cancels(engine: Any, shard: Any) -> None:
    """Ends as if somebody had cancelled it."""
    raise asyncio.CancelledError


async def never_ready(engine: Any, shard: Any) -> None:
    """Serves, perhaps, but doesn't say so."""
    await asyncio.Event().wait()


def _is_to_end(shard: Any) -> bool:
    return (shard.index, shard.generation) == (1, 1) and Path(os.environ["SUBGW_TEST_NOTES"], END).exists()


async def returns_later(engine: Any, shard: Any) -> None:
    """The first life of shard 1 ends unasked."""
    draining = asyncio.create_task(engine.until_draining())
    while not _is_to_end(shard):
        if draining.done():
            return
        await asyncio.sleep(0.01)
    draining.cancel()


async def raises_later(engine: Any, shard: Any) -> None:
    """The first life of shard 1 fails."""
    await returns_later(engine, shard)
    if not engine.draining:
        raise LookupError("lost")


async def stays(engine: Any, shard: Any) -> None:
    """Has a request that doesn't end, and does not return when it should."""
    ready = asyncio.create_task(engine.until_draining())
    try:
        await engine.async_generate("abc", {"max_new_tokens": 4000, "ignore_eos": True})
    except EngineUnavailable as exc:
        note(shard, str(exc))
    try:
        await asyncio.Event().wait()
    finally:
        note(shard, "cancelled")
        await ready


async def one_argument(engine: Any) -> None:
    """Knows nothing of its shard."""


def plain(engine: Any, shard: Any) -> None:
    """No coroutine function."""
