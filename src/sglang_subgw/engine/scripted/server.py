"""SGLang's own, unmodified server over its own scheduler or a scripted one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ..launch import shared_memory
from ..launch.arguments import read_server_args


def serve_stock(
    argv: Sequence[str],
    *,
    on_cpu: bool,
    workers: int,
    directory: Path,
    run_scheduler: Callable[..., None] | None = None,
) -> None:
    """Serve with `workers` TokenizerWorkers, in the main thread; does not return.

    What the scheduler has in shared memory is noted in `directory`: it must be found when its process has been killed.
    """
    from sglang.srt.entrypoints.http_server import launch_server
    from sglang.srt.managers.scheduler import run_scheduler_process

    server_args = read_server_args(argv, on_cpu=on_cpu)
    server_args.tokenizer_worker_num = workers
    noted = partial(_run_noted, directory, run_scheduler or run_scheduler_process)
    launch_server(server_args, run_scheduler_process_func=noted)


def _run_noted(directory: Path, run: Callable[..., None], server_args: Any, port_args: Any, *args: Any) -> None:
    shared_memory.note(directory, port_args)
    run(server_args, port_args, *args)
