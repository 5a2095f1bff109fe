"""Notices that a part of the engine died: a process, or the router that runs in a thread of this one."""

from __future__ import annotations

import multiprocessing.connection
import os
import threading
from collections.abc import Callable
from typing import Any, Final

from .children import Children
from .host import CrashSignal

_NAMING_SECONDS: Final = 2.0
"""So long for a process that is about to end to have an exit code."""


class Watcher:
    """Threads that wait for the first part of the engine to end, and tell why; they poll nothing."""

    def __init__(self, children: Children, router: Any, crash_signal: CrashSignal) -> None:
        self._children = children
        self._crash_signal = crash_signal
        self._futures = [
            future for name in ("_task", "_handle_task") if (future := getattr(router, name, None)) is not None
        ]
        self._router_thread: threading.Thread | None = getattr(router, "_thread", None)
        self._callbacks: list[Callable[[str], object]] = []
        self._lock = threading.Lock()
        self._reason = ""
        self._stopping = False
        self._thread = threading.Thread(target=self._watch, name="subgw-engine-watch", daemon=True)
        self._router_watch = threading.Thread(target=self._watch_router, name="subgw-router-watch", daemon=True)

    def start(self) -> None:
        """Begin to watch."""
        self._thread.start()
        self._router_watch.start()
        for future in self._futures:
            future.add_done_callback(self._on_router_end)

    def stop(self) -> None:
        """Stop watching: whatever ends from now on was meant to. Safe to call twice."""
        self._stopping = True
        self._crash_signal.wake()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()

    def join(self) -> None:
        """Wait for the last thread, which ends with the router's."""
        self._router_watch.join(_NAMING_SECONDS)

    def on_death(self, callback: Callable[[str], object]) -> None:
        """Call back with the reason, once and from a thread; at once if it has happened already."""
        with self._lock:
            self._callbacks.append(callback)
            reason = self._reason
        if reason:
            callback(reason)

    def router_alive(self) -> bool:
        """Whether SGLang's router still forwards requests: an undecodable message ends it without a word."""
        thread_ended = self._router_thread is not None and not self._router_thread.is_alive()
        return not thread_ended and not any(future.done() for future in self._futures)

    def _watch(self) -> None:
        names: dict[Any, str] = {process.sentinel: name for name, process in self._children.processes.items()}
        ended = multiprocessing.connection.wait([*names, self._crash_signal.reader])
        crashed = self._crash_signal.reader in ended
        if crashed:
            os.read(self._crash_signal.reader, 1)
        if self._stopping:
            return
        name = next((names[item] for item in ended if item in names), "")
        self._report(self._exit_reason(name) if name else self._crash_reason(names))

    def _crash_reason(self, names: dict[Any, str]) -> str:
        """After SIGQUIT, which a child sends once it has logged why; it ends later, or never."""
        name, words = self._children.last_words()
        if name:
            return f"SGLang's {name} crashed: {words}"
        ended = multiprocessing.connection.wait(names, _NAMING_SECONDS)
        return next((self._exit_reason(names[item]) for item in ended), "a process of SGLang's crashed")

    def _exit_reason(self, name: str) -> str:
        process = self._children.processes[name]
        process.join(_NAMING_SECONDS)
        code = process.exitcode
        if code is not None and code < 0:
            return f"SGLang's {name} (pid {process.pid}) was killed by signal {-code}"
        author, words = self._children.last_words()
        return f"SGLang's {name} (pid {process.pid}) ended with exit code {code}" + (
            f": {words}" if author == name else ""
        )

    def _watch_router(self) -> None:
        # Its tasks never end when its loop does.
        if self._router_thread is not None:
            self._router_thread.join()
            self._report("SGLang's router ended: its thread is gone, and its event loop with it")

    def _on_router_end(self, future: Any) -> None:
        if self._stopping:
            return
        error = None if future.cancelled() else future.exception()
        self._report(f"SGLang's router ended: {'one of its tasks is gone' if error is None else repr(error)}")

    def _report(self, reason: str) -> None:
        with self._lock:
            if self._reason or self._stopping:
                return
            self._reason = reason
            callbacks = list(self._callbacks)
        for callback in callbacks:
            callback(reason)
