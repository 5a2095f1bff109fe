"""A process that runs SGLang's own, unmodified server, over a simulated scheduler or the real one."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import tempfile
import threading
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
    from ...engine.scripted.server import serve_stock
    from ..engines import engine_argv, script_for, sglang_environment

    wire = {name: settings[name] for name in ("grouped", "codec", "rust")}
    with sglang_environment(**wire) as on_cpu:
        argv = engine_argv(settings["argv"], simulated=settings["simulated"])
        serve_stock(
            [*argv, "--port", str(settings["port"])],
            on_cpu=on_cpu,
            workers=settings["workers"],
            directory=Path(tempfile.gettempdir()),
            run_scheduler=script_for(argv, settings["pace"]).scheduler() if settings["simulated"] else None,
        )


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
