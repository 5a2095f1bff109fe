"""A process that runs SGLang's own, unmodified server, over a simulated scheduler or the real one."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from ...engine.launch import shared_memory
from ..system import cpu
from ..system.child import Parent


def main() -> int:
    """Serve until the bench closes."""
    parent = Parent()
    settings = parent.settings()
    # SGLang's main thread serves and never returns.
    threading.Thread(target=_end_with_parent, args=(parent,), daemon=True).start()
    _serve(settings)
    return 0


def _serve(settings: dict[str, Any]) -> None:
    from ...engine.launch.arguments import read_server_args
    from ..engines import engine_argv, script_for, sglang_environment

    wire = {name: settings[name] for name in ("grouped", "codec", "rust")}
    with sglang_environment(**wire) as on_cpu:
        from sglang.srt.entrypoints.http_server import launch_server
        from sglang.srt.managers.scheduler import run_scheduler_process

        argv = engine_argv(settings["argv"], simulated=settings["simulated"])
        server_args = read_server_args([*argv, "--port", str(settings["port"])], on_cpu=on_cpu)
        server_args.tokenizer_worker_num = settings["workers"]
        run = script_for(argv, settings["pace"]).scheduler() if settings["simulated"] else run_scheduler_process
        launch_server(server_args, run_scheduler_process_func=partial(_run_noted, Path(tempfile.gettempdir()), run))


def _run_noted(directory: Path, run: Callable[..., None], server_args: Any, port_args: Any, *args: Any) -> None:
    """In the scheduler's process: what it has in shared memory must be found when it has been killed."""
    shared_memory.note(directory, port_args)
    run(server_args, port_args, *args)


def _end_with_parent(parent: Parent) -> None:
    for _ in parent.messages():
        pass
    for pid in cpu.descendants(os.getpid())[1:]:
        # multiprocessing's tracker ends after this process, and removes the semaphores that the others leave.
        if "resource_tracker" not in cpu.title(pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    for path in shared_memory.noted(Path(tempfile.gettempdir())):
        path.unlink(missing_ok=True)
    Path("/dev/shm", shared_memory.arguments_name(os.getpid())).unlink(missing_ok=True)
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
