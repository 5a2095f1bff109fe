"""`embed.engine_process_main` with a simulated engine in the place of SGLang's; its arguments tell how it fares."""

from __future__ import annotations

import json
import os
import runpy
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sglang_subgw.engine.launch.launch as launching
from sglang_subgw.engine.launch.cancellation import Cancellation
from sglang_subgw.errors import EngineStartError, StorageError
from sglang_subgw.simulated import SimulatedEngine


@contextmanager
def launch(
    arguments: dict[str, Any], *, runtime_dir: Path, on_phase: Callable[[str], None], cancellation: Cancellation
) -> Iterator[SimulatedEngine]:
    """What `how` says: serve, or one of the ways in which a start goes wrong."""
    on_phase("importing SGLang")
    match arguments.get("how"):
        case "fail":
            raise EngineStartError("there is no such model", hint="Give another.")
        case "full":
            raise StorageError("the disk is full")
        case "bug":
            raise ZeroDivisionError("a bug")
        case "exit":
            os._exit(7)
        case "hang":
            import threading

            ended = threading.Event()
            with cancellation.by(ended.set):
                on_phase("loading the model")
                ended.wait()
            cancellation.check()
    with SimulatedEngine(runtime_dir, step_seconds=0.01) as engine:
        yield engine
    if path := arguments.get("ended"):
        Path(path).write_text(json.dumps(arguments))


if __name__ == "__main__":
    launching.launch = launch  # type: ignore[assignment]
    sys.modules["sglang"] = sys.modules["torch"] = None  # type: ignore[assignment]
    runpy.run_module("sglang_subgw.embed.engine_process_main", run_name="__main__", alter_sys=True)
