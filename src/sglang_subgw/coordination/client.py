"""A worker's connection to the coordinator of its engine: what all workers agree on, and what only the engine can do.

The coordinator (`coordination.server`) is in the engine's process. It keeps a state that every worker sees (paused,
held, weights, adapters), gives exclusive sections in the order in which they are asked for, passes on what one worker
tells all, itself included, and waits for all of them to have done it.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

from ..errors import EngineUnavailable, RequestError, RequestRejected
from . import frames as frames

log = logging.getLogger("sglang_subgw.shard")

SOCKET_NAME: Final = "coordinator"
"""In the engine's runtime directory."""
TELL_SECONDS: Final = 30.0
"""Within these every worker must have done what it was told, unless it waits for requests to end."""
_CONNECT_SECONDS: Final = 10.0

type Handler = Callable[[dict[str, Any]], Any]
"""Does what a worker was told, given its body; may be a coroutine function; its result must be plain values."""


class Coordination:
    """One worker's end, on the event loop that `start` runs on."""

    def __init__(self, path: str, name: str) -> None:
        self.state: dict[str, Any] = {}
        """What all workers agree on; replaced as a whole, never changed in place."""
        self.on_state: Callable[[dict[str, Any]], None] = lambda state: None
        """Called with the state at the start and at each change, before anybody is told that it was taken."""
        self.handlers: dict[str, Handler] = {"apply": lambda body: None}
        self._path = path
        self._name = name
        self._ids = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[tuple[Any, bytes]]] = {}
        self._streams: dict[int, asyncio.Queue[dict[str, Any]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None
        self._gone = "this worker is not connected to its engine's coordinator"

    async def start(self) -> None:
        """Connect and learn the state; raises EngineUnavailable with the reason."""
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                reader, self._writer = await asyncio.open_unix_connection(self._path)
                self._reading = asyncio.get_running_loop().create_task(self._read(reader))
                self._take(await self._ask("join", name=self._name))
        except TimeoutError:
            raise EngineUnavailable(f"The engine's coordinator did not answer within {_CONNECT_SECONDS:g} s.") from None
        except OSError as exc:
            raise EngineUnavailable(f"The engine's coordinator at {self._path} can't be reached: {exc}.") from exc

    async def close(self) -> None:
        """Leave: sections that are held end, what is asked fails."""
        writer = self._writer
        self._fail("this worker is stopping")
        tasks = [task for task in (self._reading, *self._tasks) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if writer is not None:
            with suppress(OSError):
                await writer.wait_closed()

    @asynccontextmanager
    async def exclusive(self, name: str, *, after: dict[str, Any] | None = None) -> AsyncIterator[None]:
        """Be the only worker in the section `name`; `after` becomes the state when it is left, also by its death."""
        ticket = next(self._ids)
        try:
            await self._ask("acquire", section=name, ticket=ticket, after=after)
            yield
        finally:
            # Also for one that was given up while it waited.
            self._send({"op": "release", "section": name, "ticket": ticket})

    async def tell(
        self,
        kind: str,
        body: dict[str, Any] | None = None,
        *,
        state: dict[str, Any] | None = None,
        timeout: float | None = TELL_SECONDS,
    ) -> list[Any]:
        """Change the state and let every worker, this one too, do `kind`; their results.

        Raises EngineUnavailable with the names of those that did not do it within `timeout` seconds, or failed.
        """
        told: list[Any] = await self._ask("tell", kind=kind, body=body or {}, state=state or {}, timeout=timeout)
        return told

    async def call(self, method: str, arguments: dict[str, Any], blob: bytes = b"") -> tuple[Any, bytes]:
        """What the engine's own process makes of it; given up early, it is ended there.

        Raises its RequestRejected or EngineUnavailable.
        """
        number = next(self._ids)
        try:
            message = {"op": "call", "id": number, "method": method, "arguments": arguments}
            return await self._request(message, blob)
        except asyncio.CancelledError:
            self._send({"op": "end", "id": number})
            raise

    async def stream(self, method: str, arguments: dict[str, Any], blob: bytes = b"") -> AsyncIterator[Any]:
        """What the engine's own process makes of it, item by item; given up early, it is ended there."""
        number = next(self._ids)
        items: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._check()
        self._streams[number] = items
        try:
            self._send({"op": "stream", "id": number, "method": method, "arguments": arguments}, blob)
            while "end" not in (message := await items.get()):
                if "error" in message:
                    raise _error(message)
                yield message["value"]
        finally:
            del self._streams[number]
            self._send({"op": "end", "id": number})

    async def _ask(self, op: str, **fields: Any) -> Any:
        value, _ = await self._request({"op": op, "id": next(self._ids), **fields})
        return value

    async def _request(self, message: dict[str, Any], blob: bytes = b"") -> tuple[Any, bytes]:
        self._check()
        number = message["id"]
        future: asyncio.Future[tuple[Any, bytes]] = asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        try:
            self._send(message, blob)
            return await future
        finally:
            del self._waiting[number]

    def _check(self) -> None:
        if self._writer is None:
            raise EngineUnavailable(f"The engine can't be asked: {self._gone}.")

    def _send(self, message: dict[str, Any], blob: bytes = b"") -> None:
        if self._writer is None or self._writer.is_closing():
            return
        try:
            frames.write(self._writer, message, blob)
        except (ValueError, TypeError) as exc:
            raise RequestRejected(f"That can't be passed to the engine: {exc}.") from exc

    async def _read(self, reader: asyncio.StreamReader) -> None:
        reason = "its coordinator has ended"
        try:
            while True:
                self._on_message(*await frames.read(reader))
        except EOFError:
            return
        except (OSError, ValueError) as exc:
            reason = f"the connection to its coordinator broke: {exc}"
        finally:
            self._fail(reason)

    def _on_message(self, message: dict[str, Any], blob: bytes) -> None:
        if "told" in message:
            task = asyncio.get_running_loop().create_task(self._do(message))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            return
        if (items := self._streams.get(message["id"])) is not None:
            items.put_nowait(message)
            return
        future = self._waiting.get(message["id"])
        if future is None or future.done():
            return
        if "error" in message:
            future.set_exception(_error(message))
        else:
            future.set_result((message.get("value"), blob))

    async def _do(self, message: dict[str, Any]) -> None:
        answer: dict[str, Any] = {"op": "done", "told": message["told"]}
        try:
            if message["state"]:
                self._take({**self.state, **message["state"]})
            result = self.handlers[message["kind"]](message["body"])
            answer["value"] = await result if inspect.isawaitable(result) else result
        except Exception as exc:  # Whoever told it must hear of it.
            log.exception("A worker could not do %r.", message["kind"])
            answer["error"] = f"{type(exc).__name__}: {exc}"
        self._send(answer)

    def _take(self, state: dict[str, Any]) -> None:
        self.state = state
        self.on_state(state)

    def _fail(self, reason: str) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None
            self._gone = reason
        error = f"The engine can't be asked: {self._gone}."
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(EngineUnavailable(error))
        for items in self._streams.values():
            items.put_nowait({"error": error})


def _error(message: dict[str, Any]) -> RequestError:
    kind = RequestRejected if message.get("rejected") else EngineUnavailable
    return kind(message["error"])
