"""Notices that a part of the engine died: a process, or the router that runs in a thread of this one."""

from __future__ import annotations

import multiprocessing.connection
import os
import threading
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

_NAMING_SECONDS: Final = 2.0
"""So long for a process that is about to end to have an exit code."""
_LOOK_SECONDS: Final = 0.5
"""How often the router's thread is looked at, whose end nothing tells of; of all else the kernel or the loop does."""


class EngineProcesses(Protocol):
    """The engine's processes, and what they said last."""

    @property
    def processes(self) -> Mapping[str, Any]:
        """multiprocessing's processes by their role."""

    def last_words(self) -> tuple[str, str]:
        """Which process logged the last error, and what it said; empty without one."""


class Watcher:
    """A thread that waits for the first part of the engine to end, and tells why."""

    def __init__(self, processes: EngineProcesses, router: Any) -> None:
        self._processes = processes
        self._futures = [
            future for name in ("_task", "_handle_task") if (future := getattr(router, name, None)) is not None
        ]
        self._router_thread: threading.Thread | None = getattr(router, "_thread", None)
        self._callbacks: list[Callable[[str], object]] = []
        self._lock = threading.Lock()
        self._reason = ""
        self._crashed = False
        self._stopping = False
        self._pipe: tuple[int, ...] = ()
        self._thread = threading.Thread(target=self._watch, name="subgw-engine-watch", daemon=True)

    def start(self) -> None:
        """Begin to watch."""
        self._pipe = os.pipe()
        self._thread.start()
        for future in self._futures:
            future.add_done_callback(self._on_router_end)

    def stop(self) -> None:
        """Stop watching: whatever ends from now on was meant to. Safe to call twice."""
        self._stopping = True
        self._wake()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()
        for end in self._pipe:
            os.close(end)
        self._pipe = ()

    def on_death(self, callback: Callable[[str], object]) -> None:
        """Call back with the reason, once and from a thread; at once if it has happened already."""
        with self._lock:
            self._callbacks.append(callback)
            reason = self._reason
        if reason:
            callback(reason)

    def crashed(self) -> None:
        """One of the processes says that it has crashed, as they do by SIGQUIT; for a signal's handler, too."""
        self._crashed = True
        self._wake()

    @property
    def reason(self) -> str:
        """Why the engine ended by itself, "" while it has not."""
        return self._reason

    def router_alive(self) -> bool:
        """Whether SGLang's router still forwards requests: an undecodable message ends it without a word."""
        return self._router_thread_lives() and not any(future.done() for future in self._futures)

    def _router_thread_lives(self) -> bool:
        return self._router_thread is None or self._router_thread.is_alive()

    def _wake(self) -> None:
        if self._pipe:
            os.write(self._pipe[1], b"!")

    def _watch(self) -> None:
        woken = self._pipe[0]
        names: dict[Any, str] = {process.sentinel: name for name, process in self._processes.processes.items()}
        while not self._done():
            ended = multiprocessing.connection.wait([*names, woken], _LOOK_SECONDS)
            if self._done():
                return
            if name := next((names[item] for item in ended if item in names), ""):
                self._report(self._exit_reason(name))
            elif self._crashed:
                self._report(self._crash_reason(names))
            elif not self._router_thread_lives():
                # Its tasks never end when its loop does.
                self._report("SGLang's router ended: its thread is gone, and its event loop with it")

    def _done(self) -> bool:
        return self._stopping or bool(self._reason)

    def _crash_reason(self, names: dict[Any, str]) -> str:
        """Of a process that said so once it had logged why; it ends later, or never."""
        name, words = self._processes.last_words()
        if name:
            return f"SGLang's {name} crashed: {words}"
        ended = multiprocessing.connection.wait(names, _NAMING_SECONDS)
        return next((self._exit_reason(names[item]) for item in ended), "a process of SGLang's crashed")

    def _exit_reason(self, name: str) -> str:
        process = self._processes.processes[name]
        process.join(_NAMING_SECONDS)
        code = process.exitcode
        if code is not None and code < 0:
            return f"SGLang's {name} (pid {process.pid}) was killed by signal {-code}"
        author, words = self._processes.last_words()
        return f"SGLang's {name} (pid {process.pid}) ended with exit code {code}" + (
            f": {words}" if author == name else ""
        )

    def _on_router_end(self, future: Any) -> None:
        error = None if future.cancelled() else future.exception()
        # SGLang's own handler of an error in there fails itself, and hides it.
        while error is not None and error.__context__ is not None:
            error = error.__context__
        self._report(f"SGLang's router ended: {'one of its tasks is gone' if error is None else repr(error)}")

    def _report(self, reason: str) -> None:
        with self._lock:
            if self._reason or self._stopping:
                return
            self._reason = reason
            callbacks = list(self._callbacks)
        for callback in callbacks:
            callback(reason)
