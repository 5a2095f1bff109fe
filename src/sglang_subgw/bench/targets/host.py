"""A process that owns an engine and opens one gateway after the other on it, as the bench tells it to."""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from ...config import GatewayConfig
from ...contract import Word
from ...errors import SubgwError
from ...gateway import Engine, ShardGateway
from ...gateway.runtime import make_runtime_dir, remove_runtime_dir
from ...modes.gil import free_threaded_build
from ..system.child import Parent


@contextmanager
def sglang_engine(settings: dict[str, Any], on_phase: Callable[[str], None]) -> Iterator[Engine]:
    """SGLang's router and detokenizer with a simulated scheduler."""
    from ...engine.launch.launch import launch
    from ..engines import engine_argv, script_for, sglang_environment

    with ExitStack() as stack:
        stack.enter_context(sglang_environment(grouped=settings["grouped"], codec=settings["codec"]))
        argv = engine_argv(settings["argv"], simulated=settings["simulated"])
        run_scheduler = script_for(argv, settings["pace"]).scheduler() if settings["simulated"] else None
        directory = make_runtime_dir()
        stack.callback(remove_runtime_dir, directory)
        yield stack.enter_context(launch(argv, runtime_dir=directory, on_phase=on_phase, run_scheduler=run_scheduler))


@contextmanager
def attached_engine(settings: dict[str, Any], on_phase: Callable[[str], None]) -> Iterator[Engine]:
    """An engine that another process owns."""
    from ...engine.attach.attached import AttachedEngine

    on_phase(f"attaching to {settings['target']}")
    with AttachedEngine.attach(settings["target"]) as engine:
        yield engine


ENGINES = {"sglang": sglang_engine, "attached": attached_engine}


class BenchHost:
    """Answers the bench's messages."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._threads_before = set(_threads())
        self._gateway: ShardGateway | None = None

    def open(self, config: dict[str, Any]) -> dict[str, Any]:
        """Start a gateway; what the bench must know of it."""
        started = time.monotonic()
        gateway = ShardGateway(self._engine, GatewayConfig(host="127.0.0.1", port=0, log_level="warning", **config))
        gateway.start()
        self._gateway = gateway
        assert gateway.segment is not None
        # There may be more slots than shards: a gateway can grow.
        ids = {i: thread for i, slot in enumerate(gateway.segment.slots) if (thread := slot.get(Word.THREAD_ID))}
        python_threads = {thread.native_id for thread in threading.enumerate()}
        return {
            "address": gateway.address,
            "mode": gateway.config.mode,
            "segment": gateway.segment.name,
            "seconds": time.monotonic() - started,
            "start_seconds": gateway.start_seconds(),
            "slots": list(ids),
            "shards": list(ids.values()),
            # A shard's helpers (tokenization, KV events) are no threads of this interpreter, or come later.
            "main_threads": sorted(self._threads_before | {t for t in python_threads if t and t not in ids.values()}),
        }

    def close(self) -> None:
        """End the gateway, if there is one."""
        if self._gateway is not None:
            self._gateway.stop()
            self._gateway = None


def python_name() -> str:
    """This Python's version, with a t for a free-threaded build."""
    return f"{sys.version_info.major}.{sys.version_info.minor}{'t' if free_threaded_build() else ''}"


def _threads() -> list[int]:
    return [int(name) for name in os.listdir("/proc/self/task")]


def main() -> int:
    """Serve the bench until it closes."""
    parent = Parent()
    settings = parent.settings()
    try:
        with ENGINES[settings["engine"]](settings, lambda phase: parent.say(phase=phase)) as engine:
            host = BenchHost(engine)
            # As the command line's own process does.
            gc.freeze()
            parent.say(python=python_name(), model=engine.contract.model.served_model_name)
            try:
                for message in parent.messages():
                    match message["do"]:
                        case "open":
                            parent.say(**host.open(message["config"]))
                        case "close":
                            host.close()
                            parent.say(closed=True)
            finally:
                host.close()
    except SubgwError as exc:
        parent.say(error=str(exc))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
