"""The end of an engine, whether it served for a month or failed half-way through its start."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import shutil
from collections.abc import Iterable, Sequence
from multiprocessing.shared_memory import SharedMemory
from typing import Any, Final

from . import shared_memory
from .children import Children

_GRACE_SECONDS: Final = 15.0
"""As long as SGLang itself gives its schedulers to release an accelerator."""


def close_engine(engine: Any, children: Children, routers: Sequence[Any], *, graceful: bool) -> None:
    """End the engine's processes, then remove its sockets, threads, files and shared memory.

    `routers` are those that it started: one that failed half-way doesn't know its own. Engine.shutdown isn't used: it
    kills every child of this process, other engines and process shards included.
    """
    if engine is not None:
        atexit.unregister(engine.shutdown)
    manager = getattr(engine, "tokenizer_manager", None)
    if (watchdog := getattr(manager, "_subprocess_watchdog", None)) is not None:
        watchdog.stop()
    if graceful and children.all_alive():
        _ask_schedulers_to_stop(engine.port_args.tokenizer_worker_ipc_name)
        children.wait_for_schedulers(_GRACE_SECONDS)
    if engine is not None and (daemons := getattr(engine, "_weight_cache_daemon_procs", None)):
        engine._terminate_weight_cache_daemons(daemons)
    children.kill()
    if (result := getattr(engine, "_scheduler_init_result", None)) is not None:
        result.stop_grpc_server()
    for router in routers:
        _close_router(router)
    if manager is not None and manager not in routers:
        _close_manager(engine, manager)
    _remove_shared_memory(children)
    shutil.rmtree(children.directory, ignore_errors=True)


def _ask_schedulers_to_stop(endpoint: str) -> None:
    import zmq
    from sglang.srt.managers.io_struct import ShutdownReq, sock_send

    with zmq.Context() as context, context.socket(zmq.PUSH) as socket:
        socket.linger = 1000
        socket.connect(endpoint)
        sock_send(socket, ShutdownReq())


def _close_router(router: Any) -> None:
    """End the router's thread: nothing of SGLang's ever does."""
    loop = router._loop

    async def end() -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for name in ("recv_from_detokenizer", "send_to_scheduler", "receive_from_worker"):
            getattr(router, name).close(linger=0)
        router.socket_mapping.clear_all_sockets()
        loop.stop()

    if not router._thread.is_alive():
        return
    asyncio.run_coroutine_threadsafe(end(), loop)
    router._thread.join(_GRACE_SECONDS)
    if not router._thread.is_alive():
        loop.close()


def _close_manager(engine: Any, manager: Any) -> None:
    loop = getattr(engine, "loop", None)
    if loop is not None and not loop.is_running() and not loop.is_closed():
        tasks = asyncio.all_tasks(loop)
        for task in tasks:
            task.cancel()
        if asyncio._get_running_loop() is None:
            loop.run_until_complete(_settled(tasks))
    for socket in (
        getattr(manager, "recv_from_detokenizer", None),
        getattr(manager, "send_to_scheduler", None),
        getattr(engine, "send_to_rpc", None),
    ):
        if socket is not None:
            socket.close(linger=0)
    if (processor := getattr(manager, "mm_processor", None)) is not None:
        processor.shutdown()
    if (transport := getattr(manager, "cuda_vmm_feature_transport", None)) is not None:
        transport.shutdown()
    if loop is not None and not loop.is_running():
        loop.close()


async def _settled(tasks: Iterable[asyncio.Task[Any]]) -> None:
    # In here, since a gather of nothing belongs to whatever loop is the thread's current one.
    await asyncio.gather(*tasks, return_exceptions=True)


def _remove_shared_memory(children: Children) -> None:
    with contextlib.suppress(FileNotFoundError):
        # By its class, which also tells the resource tracker.
        memory = SharedMemory(shared_memory.arguments_name(os.getpid()))
        memory.close()
        memory.unlink()
    for path in shared_memory.noted(children.directory):
        path.unlink(missing_ok=True)
