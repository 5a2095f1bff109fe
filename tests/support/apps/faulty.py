"""An application whose routes break the shard that they run in, beside the gateway's own."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import time
from collections.abc import Callable
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Mount, Route

from sglang_subgw.http.app import create_app

SOON = 0.05
"""So much later than the answer to the request that asked for it."""


class InjectedError(Exception):
    """What the routes raise."""


def app(engine: Any, info: Any, config: Any) -> Starlette:
    """The factory for --app."""
    faults = Faults(engine)

    async def fault(request: Request) -> JSONResponse:
        name = request.path_params["name"]
        number = float(request.query_params.get("n", "0"))
        asyncio.get_running_loop().call_later(SOON, getattr(faults, name), number)
        return JSONResponse({"shard": info.index, "pid": os.getpid()})

    async def fail(request: Request) -> JSONResponse:
        raise InjectedError("in a request")

    async def leave(request: Request) -> JSONResponse:
        sys.exit(3)

    async def hang(request: Request) -> JSONResponse:
        return await asyncio.get_running_loop().create_future()

    routes = [Route("/fault/{name}", fault), Route("/fail", fail), Route("/leave", leave), Route("/hang", hang)]
    return Starlette(routes=[*routes, Mount("/", create_app(engine, info, config))])


def starts_once(engine: Any, info: Any, config: Any) -> Starlette:
    """Shard 1 can be started, and never again."""
    if info.index == 1 and info.generation > 1:
        raise InjectedError("not a second time")
    return app(engine, info, config)


async def hangs_once(engine: Any, info: Any, config: Any) -> Starlette:
    """The second start of shard 1 takes for ever."""
    if info.index == 1 and info.generation == 2:
        await asyncio.Event().wait()
    return app(engine, info, config)


def never_starts(engine: Any) -> Starlette:
    """Its factory fails."""
    raise InjectedError("in the factory")


class Faults:
    """Each is called from the shard's loop, with a number."""

    def __init__(self, engine: Any) -> None:
        self._worker = engine.worker

    def callback(self, _: float) -> None:
        raise InjectedError("in a callback")

    def task(self, _: float) -> None:
        _start(_raise(InjectedError("in a task")))

    def exit_task(self, status: float) -> None:
        _start(_raise(SystemExit(int(status))))

    def receive(self, _: float) -> None:
        """Whatever the engine sends next can't be taken."""

        def on_frames(frames: list[bytes]) -> None:
            raise InjectedError("on a frame")

        self._worker._socket._pull._on_frames = on_frames

    def closed_socket(self, _: float) -> None:
        """Nothing tells that nothing comes any more."""
        with open(os.devnull) as other:
            os.dup2(other.fileno(), self._worker._socket._pull._listener.fileno())

    def heartbeat(self, _: float) -> None:
        _named("heartbeat").cancel()

    def server(self, _: float) -> None:
        _named("server").cancel()

    def busy_thread(self, seconds: float) -> None:
        """The end of the loop waits for a thread."""
        asyncio.get_running_loop().run_in_executor(None, time.sleep, seconds)
        self.heartbeat(0)

    def every_task(self, _: float) -> None:
        for task in asyncio.all_tasks():
            task.cancel()

    def os_exit(self, status: float) -> None:
        os._exit(int(status))

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def receive_blocking(self, seconds: float) -> None:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            ours.settimeout(seconds)
            _ignoring(TimeoutError, lambda: ours.recv(1))

    def spin(self, seconds: float) -> None:
        """A busy loop in Python; 0 for one that never ends."""
        end = time.monotonic() + seconds
        while not seconds or time.monotonic() < end:
            pass


def _ignoring(kind: type[Exception], call: Callable[[], object]) -> None:
    try:
        call()
    except kind:
        return


async def _raise(exc: BaseException) -> None:
    raise exc


_kept: set[asyncio.Task[None]] = set()


def _start(coroutine: Any) -> None:
    task = asyncio.get_running_loop().create_task(coroutine)
    _kept.add(task)
    task.add_done_callback(_kept.discard)


def _named(name: str) -> asyncio.Task[Any]:
    return next(task for task in asyncio.all_tasks() if task.get_name() == name)
