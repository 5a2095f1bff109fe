"""A process that runs SGLang's own, unmodified server over the same simulated scheduler."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from multiprocessing.shared_memory import SharedMemory

from .child import Parent


def main() -> int:
    """Serve until the bench closes."""
    parent = Parent()
    settings = parent.settings()
    # SGLang's main thread serves and never returns.
    threading.Thread(target=_end_with_parent, args=(parent,), daemon=True).start()
    _serve(settings)
    return 0


def _serve(settings: dict) -> None:  # type: ignore[type-arg]
    from ..engine.arguments import read_server_args
    from .engines import engine_argv, script_for, sglang_environment

    with sglang_environment(grouped=settings["grouped"], codec=settings["codec"]) as on_cpu:
        from sglang.srt.entrypoints.http_server import launch_server
        from sglang.srt.managers.scheduler import run_scheduler_process

        argv = engine_argv(settings["argv"], simulated=settings["simulated"])
        server_args = read_server_args([*argv, "--port", str(settings["port"])], on_cpu=on_cpu)
        server_args.tokenizer_worker_num = settings["workers"]
        run_scheduler = (
            script_for(argv, settings["pace"]).scheduler() if settings["simulated"] else run_scheduler_process
        )
        launch_server(server_args, run_scheduler_process_func=run_scheduler)


def _end_with_parent(parent: Parent) -> None:
    for _ in parent.messages():
        pass
    from sglang.srt.utils import kill_process_tree

    kill_process_tree(os.getpid(), include_parent=False)
    with contextlib.suppress(FileNotFoundError):
        memory = SharedMemory(f"multi_tokenizer_args_{os.getpid()}")
        memory.close()
        memory.unlink()
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
