"""The event loop of an engine's tokenizer manager: run for as long as the engine lives, used by any thread."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import inspect
import logging
import threading
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Coroutine
from functools import partial
from typing import Any, Final

import zmq

from ..errors import EngineUnavailable
from ..system.seldom import Seldom

log = logging.getLogger("sglang_subgw.engine")

_SETTLE_SECONDS: Final = 5.0
"""So long may calls that are cancelled by the end take over it."""


class EngineLoop:
    """Carries out calls on the loop of an sglang.Engine, from `start` to `close`.

    Between the two `engine.loop` waits for the loop in place of running it, so that the engine's synchronous methods
    work in every thread, several at once. A loop that its maker runs already is used as it is.
    """

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self._manager = engine.tokenizer_manager
        self._stock_loop: asyncio.AbstractEventLoop = engine.loop
        in_use = self._manager.event_loop
        self.loop: asyncio.AbstractEventLoop = in_use if in_use and in_use.is_running() else engine.loop
        """The real one."""
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._end = ""
        self._tasks: set[asyncio.Task[Any]] = set()
        self._results: set[concurrent.futures.Future[Any]] = set()
        self._receives = False
        self._seldom = Seldom(log)

    def start(self) -> None:
        """Run the loop in a thread of its own if nobody does, and let the tokenizer manager receive."""
        if not self.loop.is_running():
            self._thread = threading.Thread(target=self._run, name="subgw-engine-loop", daemon=True)
            self._thread.start()
            running = threading.Event()
            self.loop.call_soon_threadsafe(running.set)
            running.wait()
        if self._manager.event_loop is None:
            # SGLang's own way to begin installs signal handlers, and kills this process and its children on an error.
            self._manager.event_loop = self.loop
            self._receives = True
            self._submit(self._receive())
        self._engine.loop = WaitedLoop(self)

    def run(self, awaitable: Awaitable[Any]) -> Any:
        """Its result, waited for by the calling thread; raises RuntimeError in the loop's own.

        Raises EngineUnavailable when the engine ends first.
        """
        if self._is_here():
            _discard(awaitable)
            raise RuntimeError("This is the engine's event loop, which can't wait for itself: await the async form.")
        result = self._submit(awaitable)
        try:
            return result.result()
        except BaseException:
            result.cancel()
            raise

    async def call(self, awaitable: Awaitable[Any]) -> Any:
        """Its result, awaited on any other event loop; cancelled with the caller.

        Raises EngineUnavailable when the engine ends first.
        """
        return await asyncio.wrap_future(self._submit(awaitable))

    async def stream(self, items: AsyncIterable[Any]) -> AsyncGenerator[Any]:
        """Its items, on any other event loop; left early, the one that it comes from is told by a cancellation."""
        here = asyncio.get_running_loop()
        arrived: asyncio.Queue[tuple[Any] | None] = asyncio.Queue()

        def put(item: tuple[Any]) -> None:
            with contextlib.suppress(RuntimeError):  # Whoever wanted it may have ended with its loop.
                here.call_soon_threadsafe(arrived.put_nowait, item)

        async def pump() -> None:
            async for item in items:
                put((item,))

        def on_end(task: asyncio.Task[None]) -> None:
            arrived.put_nowait(None)
            if not task.cancelled():
                # Seen, also if nobody waits any longer.
                task.exception()

        pumping = asyncio.create_task(self.call(pump()))
        pumping.add_done_callback(on_end)
        try:
            while (got := await arrived.get()) is not None:
                yield got[0]
            await pumping
        finally:
            pumping.cancel()

    def fail(self, reason: str) -> None:
        """End every call, and refuse those to come, with EngineUnavailable of this reason: the first one counts."""
        with self._lock:
            if self._end:
                return
            self._end = reason
        try:
            self.loop.call_soon_threadsafe(self._cancel)
        except RuntimeError:  # It is closed.
            self._drop()

    def close(self) -> None:
        """End every call and give the engine its loop back, stopped if this runs it. Safe to call twice."""
        self.fail("The engine is being stopped.")
        if self._engine.loop is self._stock_loop:
            return
        self._engine.loop = self._stock_loop
        if self._is_here():
            # Nobody can wait here for what goes on when this has returned.
            self._cancel()
        else:
            if self.loop.is_running():
                asyncio.run_coroutine_threadsafe(self._settle(), self.loop).result()
            self._drop()
        if self._thread is not None:
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join()
        if self._receives:
            self._manager.event_loop = None

    def _submit(self, awaitable: Awaitable[Any]) -> concurrent.futures.Future[Any]:
        result: concurrent.futures.Future[Any] = concurrent.futures.Future()
        with self._lock:
            reason = self._end
            if not reason and self._thread is None and not self.loop.is_running():
                reason = "The event loop that the engine was made in does not run."
            if reason:
                _discard(awaitable)
                raise EngineUnavailable(reason)
            self._results.add(result)
            result.add_done_callback(self._results.discard)
            if not self._is_here():
                self.loop.call_soon_threadsafe(self._begin, awaitable, result)
                return result
        self._begin(awaitable, result)
        return result

    def _begin(self, awaitable: Awaitable[Any], result: concurrent.futures.Future[Any]) -> None:
        if result.done():
            _discard(awaitable)
            return

        def on_result(_: object) -> None:
            if not (task.done() or self.loop.is_closed()):
                self.loop.call_soon_threadsafe(task.cancel)

        task = self.loop.create_task(_coroutine(awaitable))
        self._tasks.add(task)
        task.add_done_callback(partial(self._finish, awaitable, result))
        result.add_done_callback(on_result)

    def _finish(
        self, awaitable: Awaitable[Any], result: concurrent.futures.Future[Any], task: asyncio.Task[Any]
    ) -> None:
        self._tasks.discard(task)
        _discard(awaitable)
        # Who waited may have been cancelled meanwhile.
        with contextlib.suppress(concurrent.futures.InvalidStateError):
            if task.cancelled():
                if self._end:
                    result.set_exception(EngineUnavailable(self._end))
                else:
                    result.cancel()
            elif (error := task.exception()) is not None:
                result.set_exception(error)
            else:
                result.set_result(task.result())

    async def _receive(self) -> None:
        """The manager's receiving, which one bad message doesn't end."""
        while True:
            try:
                await self._manager.handle_loop()
            except zmq.ZMQError as exc:
                self.fail(f"SGLang's tokenizer manager can't receive any more: {exc}")
                return
            except Exception as exc:  # A message can raise anything, and is gone with it.
                self._seldom.error("SGLang's tokenizer manager dropped a message: %r.", exc)

    def _run(self) -> None:
        try:
            self.loop.run_forever()
        finally:
            self.fail("The engine's event loop has ended.")
            self._drop()

    def _cancel(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def _settle(self) -> None:
        self._cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_SETTLE_SECONDS)

    def _drop(self) -> None:
        """What is still waited for on a loop that doesn't get to it."""
        for result in list(self._results):
            with contextlib.suppress(concurrent.futures.InvalidStateError):
                result.set_exception(EngineUnavailable(self._end))

    def _is_here(self) -> bool:
        try:
            return asyncio.get_running_loop() is self.loop
        except RuntimeError:
            return False


class WaitedLoop:
    """An event loop that somebody runs, as SGLang's Engine uses its own: `run_until_complete` waits for it."""

    def __init__(self, owner: EngineLoop) -> None:
        self._owner = owner

    def run_until_complete(self, future: Awaitable[Any]) -> Any:
        """As of EngineLoop.run."""
        return self._owner.run(future)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._owner.loop, name)


def _coroutine(awaitable: Awaitable[Any]) -> Coroutine[Any, Any, Any]:
    async def awaited() -> Any:
        return await awaitable

    return awaitable if inspect.iscoroutine(awaitable) else awaited()


def _discard(awaitable: Awaitable[Any]) -> None:
    """It will never be awaited: no warning about that."""
    if (close := getattr(awaitable, "close", None)) is not None:
        close()
