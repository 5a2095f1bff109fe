"""SGLang's processes: started by its own code, known to us from the first one on, with last words to quote."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import psutil  # type: ignore

from ...system.tether import Tether
from ..patches.detokenizer import run_detokenizer
from . import shared_memory
from .host import environment, stop_signals_ignored

_STARTED: Final = "started"
_TILE: Final = "tile"
_LAST_WORDS: Final = "last-words-"
_POLL_SECONDS: Final = 0.1
_KILL_SECONDS: Final = 30.0
_CRASHED: Final = 1
"""Exit code."""
_UNCHOSEN: Final = ("run_data_parallel_controller_process", "run_multi_detokenizer_router_process")
"""What runs in further processes of SGLang's, by its name in the module of Engine."""


class Children:
    """The engine's processes and what they leave behind."""

    def __init__(self, directory: Path, on_phase: Callable[[str], None]) -> None:
        self.directory = directory
        self.processes: dict[str, Any] = {}
        """multiprocessing's processes by their role."""
        self.port_args: Any = None
        # cuda.tile makes a directory when it is imported, and removes it in a process that ends by itself only.
        self._temporary = {"CUDA_TILE_TEMP_DIR": str(directory / _TILE)}
        self._on_phase = on_phase

    def engine_class(self, run_scheduler: Callable[..., None] | None = None) -> type:
        """A sglang.Engine that notes its children here as it starts them, with another scheduler if one is given."""
        from sglang.srt.entrypoints.engine import Engine

        children = self

        class WatchedEngine(Engine):  # type: ignore[misc]
            """sglang.Engine, seen from outside."""

            run_scheduler_process_func = staticmethod(
                children._held(run_scheduler or Engine.run_scheduler_process_func)
            )
            run_detokenizer_process_func = staticmethod(
                children._held(partial(run_detokenizer, Engine.run_detokenizer_process_func))
            )

            @classmethod
            def _launch_scheduler_processes(cls, server_args: Any, port_args: Any, *args: Any, **kwargs: Any) -> Any:
                children.port_args = port_args
                shared_memory.note(children.directory, port_args)
                children._on_phase("starting the scheduler")
                with children._starting():
                    result, processes = super()._launch_scheduler_processes(server_args, port_args, *args, **kwargs)
                children._note("scheduler", processes)
                ready = result.wait_for_ready

                def wait_for_ready() -> None:
                    children._wait_for_import()
                    children._on_phase("loading the model")
                    ready()

                result.wait_for_ready = wait_for_ready
                return result, processes

            @classmethod
            def _launch_detokenizer_subprocesses(cls, *args: Any, **kwargs: Any) -> Any:
                with children._starting():
                    processes, names = super()._launch_detokenizer_subprocesses(*args, **kwargs)
                children._note("detokenizer", processes)
                return processes, names

        return WatchedEngine

    @property
    def pids(self) -> tuple[int, ...]:
        """Process ids, those of processes that ended included."""
        return tuple(process.pid for process in self.processes.values())

    def last_words(self) -> tuple[str, str]:
        """Which process logged the last error, and what it said; empty without one."""
        notes = sorted(self.directory.glob(f"{_LAST_WORDS}*"), key=lambda path: path.stat().st_mtime)
        if not notes:
            return "", ""
        pid = int(notes[-1].name.removeprefix(_LAST_WORDS))
        name = next((name for name, process in self.processes.items() if process.pid == pid), f"process {pid}")
        return name, notes[-1].read_text("utf-8")

    def all_alive(self) -> bool:
        """Whether none of them has ended."""
        return bool(self.processes) and all(process.is_alive() for process in self.processes.values())

    def wait_for_schedulers(self, seconds: float) -> None:
        """Until the schedulers have ended, or so long."""
        end = time.monotonic() + seconds
        for name, process in self.processes.items():
            if name.startswith("scheduler"):
                process.join(max(0.0, end - time.monotonic()))

    def end(self) -> None:
        """Let them end at once, and a launch that waits for them fail; from any thread, and without waiting."""
        for process in list(self.processes.values()):
            process.kill()

    def kill(self) -> None:
        """End what is left of them and of their own children, and wait until it is gone."""
        roots = _existing(self.pids)
        family = [child for root in roots for child in _descendants(root)] + roots
        for process in family:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        for process in self.processes.values():
            process.join(_KILL_SECONDS)
        psutil.wait_procs(family, timeout=_KILL_SECONDS)

    def _held(self, run: Callable[..., None]) -> Callable[..., None]:
        return partial(run_child, Tether(), self.directory, run)

    @contextmanager
    def _starting(self) -> Iterator[None]:
        """Around a start of processes: also those that an Engine's class does not choose the function of are ours."""
        from sglang.srt.entrypoints import engine

        stock = {name: getattr(engine, name) for name in _UNCHOSEN}
        for name, run in stock.items():
            setattr(engine, name, self._held(run))
        try:
            with stop_signals_ignored(), environment(self._temporary):
                yield
        finally:
            for name, run in stock.items():
                setattr(engine, name, run)

    def _note(self, role: str, processes: list[Any] | None) -> None:
        for i, process in enumerate(processes or ()):
            self.processes[role if len(processes or ()) == 1 else f"{role} {i}"] = process

    def _wait_for_import(self) -> None:
        mark = self.directory / _STARTED
        while not mark.exists() and all(process.is_alive() for process in self.processes.values()):
            time.sleep(_POLL_SECONDS)


def run_child(tether: Tether, directory: Path, run: Callable[..., None], *args: Any, **kwargs: Any) -> None:
    """In the child: run SGLang's process function, and keep the last error it logs where the launcher finds it.

    `tether` comes first: reading `run` imports SGLang, which takes long enough for the launcher to be killed meanwhile.
    SGLang's own tie to its parent comes after all imports, and misses that.
    """
    (directory / _STARTED).touch()
    _end_in_a_crash()
    _tame_progress_bars(hide=os.environ.get("TQDM_DISABLE") == "1")
    logging.getLogger("sglang").addHandler(_LastWords(directory / f"{_LAST_WORDS}{os.getpid()}"))
    run(*args, **kwargs)


def _end_in_a_crash() -> None:
    """Let this process end where SGLang's code, having logged why, would send SIGQUIT to the one that launched it.

    That one would need a handler for it: the default, and SGLang's own, end it with everything it was about to say.
    """
    send = psutil.Process.send_signal

    def send_signal(self: psutil.Process, signum: int) -> None:
        if signum == signal.SIGQUIT and self.pid == os.getppid():
            os._exit(_CRASHED)
        send(self, signum)

    psutil.Process.send_signal = send_signal


def _tame_progress_bars(hide: bool) -> None:
    from tqdm import tqdm

    # Its default lock is a named semaphore, which a killed process leaves in shared memory.
    tqdm.set_lock(threading.RLock())
    if hide:
        init = tqdm.__init__

        def hidden(self: Any, *args: Any, **kwargs: Any) -> None:
            init(self, *args, **{**kwargs, "disable": True})

        # The environment variable does not do it: SGLang passes `disable` to every bar.
        tqdm.__init__ = hidden


class _LastWords(logging.Handler):
    def __init__(self, path: Path) -> None:
        super().__init__(logging.ERROR)
        self._path = path

    def emit(self, record: logging.LogRecord) -> None:
        lines = record.getMessage().strip().splitlines()
        self._path.write_text(lines[-1] if lines else "", "utf-8")


def _existing(pids: tuple[int, ...]) -> list[psutil.Process]:
    found = []
    for pid in pids:
        try:
            found.append(psutil.Process(pid))
        except psutil.NoSuchProcess:
            continue
    return found


def _descendants(process: psutil.Process) -> list[psutil.Process]:
    try:
        return list(process.children(recursive=True))
    except psutil.NoSuchProcess:
        return []
