"""The kinds of the engine's memory that are released: every worker is told, for nothing runs without them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final

from ..errors import EngineUnavailable, RequestRejected
from .client import Coordination

KINDS: Final = ("kv_cache", "weights", "cuda_graph")


def released(state: dict[str, Any]) -> set[str]:
    """Those that the engine has given back, by the state that all workers agree on."""
    return set(state.get("released") or ())


def kinds(tags: list[str] | None) -> set[str]:
    """Those that are meant, all if none is named; raises RequestRejected for what is none."""
    if tags is None or tags == []:
        return set(KINDS)
    if not isinstance(tags, list) or any(tag not in KINDS for tag in tags):
        raise RequestRejected(f"tags must be a list of {', '.join(KINDS)}, not {tags!r}.", param="tags")
    return set(tags)


async def release[T](coordination: Coordination, wanted: set[str], change: Callable[[], Awaitable[T]]) -> T:
    """The result of a change that releases these, made in a quiet engine.

    Raises RequestRejected, with nothing changed, for requests that are paused in place.
    """
    before = released(coordination.state)
    try:
        # First, so that whatever becomes of this worker nobody sends a request, nor a health check.
        await _set(coordination, before | wanted)
        running = sum(await coordination.tell("active"))
        # A scheduler ends at this with requests that it has not put back in its queue.
        if running and not coordination.state.get("retracted"):
            raise RequestRejected(f"{running} requests are paused in the engine: continue or abort them first.")
    except BaseException:
        # The engine has not been asked, and would end at a resume.
        with suppress(EngineUnavailable):
            await _set(coordination, before)
        raise
    return await change()


async def resume[T](coordination: Coordination, wanted: set[str], change: Callable[[], Awaitable[T]]) -> T:
    """The result of a change that takes these again."""
    result = await change()
    await _set(coordination, released(coordination.state) - wanted)
    return result


async def _set(coordination: Coordination, tags: set[str]) -> None:
    await coordination.tell("apply", state={"released": sorted(tags)})
