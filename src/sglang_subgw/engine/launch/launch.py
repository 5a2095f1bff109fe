"""Starts SGLang's engine with its router for shards to join, and ends it so that nothing is left."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from ...errors import ConfigError, EngineStartError, SubgwError
from ...system import arenas
from ...system.storage import writing
from ..demo import model as demo
from ..demo.platform import accelerator_present
from ..patches.router import forwarding_router
from ..services.freezing import freeze_engine
from . import arguments as args_of
from .arguments import EngineArguments
from .cancellation import Cancellation
from .children import Children
from .host import CPU, QUIET, environment, guarded, router_errors_reported, warnings_ignored
from .owned import OwnedEngine
from .teardown import close_engine

_SOCKET_DIR: Final = "e"
_PATH_LIMIT: Final = 107
"""Bytes in the path of a unix socket."""
_LONGEST_NAME: Final = 32
"""Room for the names of sockets in the runtime directory."""


def launch(
    arguments: EngineArguments,
    *,
    runtime_dir: Path,
    on_phase: Callable[[str], None] = lambda _: None,
    run_scheduler: Callable[..., None] | None = None,
    cancellation: Cancellation | None = None,
) -> RunningEngine:
    """Start an engine; without a model in the arguments, the demo model on the CPU.

    `run_scheduler` takes the place of SGLang's run_scheduler_process in the scheduler's process: a simulated one.
    Call it in the main thread; `cancellation` breaks it off from any other, with StartStopped. Raises ConfigError for
    arguments and EngineStartError for an engine that does not come up; those and whatever a signal handler raises
    meanwhile leave no process, shared memory or file behind.
    """
    if threading.current_thread() is not threading.main_thread():
        raise EngineStartError("An engine must be started in the main thread: SGLang installs signal handlers.")
    cancellation = cancellation or Cancellation()
    # Early: SGLang's imports start threads.
    arenas.enough_for_all_threads()

    def phase(text: str) -> None:
        cancellation.check()
        on_phase(text)

    sockets = _socket_dir(runtime_dir)
    children = Children(sockets, phase)
    engine: Any = None
    routers: list[Any] = []
    try:
        with ExitStack() as stack:
            stack.enter_context(guarded(sockets))
            quiet = args_of.is_quiet(arguments)
            stack.enter_context(warnings_ignored(quiet))
            stack.enter_context(environment(QUIET if quiet else {}))
            phase("importing SGLang")
            on_cpu = not accelerator_present()
            stack.enter_context(environment(CPU if on_cpu else {}))
            server_args = _server_args(arguments, on_cpu, phase)
            engine_class = children.engine_class(run_scheduler)
            stack.enter_context(router_errors_reported())
            routers = stack.enter_context(forwarding_router())
            # Not `engine_class(…)`: an engine whose __init__ fails must be within reach, to be undone.
            engine = object.__new__(engine_class)
            with cancellation.by(children.end):
                _start(engine, server_args, children)
            phase("reading what shards must know")
            running = RunningEngine(engine, children, routers, runtime_dir)
            try:
                freeze_engine(running.contract)
            except BaseException:
                running.end_services()
                raise
            return running
    except BaseException:
        close_engine(engine, children, routers, graceful=False)
        raise


class RunningEngine(OwnedEngine):
    """An engine that was launched here; `shutdown` ends it. Don't call that of the sglang.Engine: it kills every child.

    Every method of the sglang.Engine works in any thread.
    """

    def __init__(self, engine: Any, children: Children, routers: list[Any], runtime_dir: Path) -> None:
        super().__init__(engine, children, runtime_dir, engine_id=secrets.token_hex(6))
        self._children = children
        self._routers = routers
        self._lock = threading.Lock()
        self._closed = False

    def shutdown(self) -> None:
        """Stop every process of the engine and wait for it; remove its files. Safe to call twice."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self.end_services()
            # A scheduler on the CPU has nothing to release, and takes seconds over it.
            close_engine(
                self.engine, self._children, self._routers, graceful=self.contract.server_args.get("device") != "cpu"
            )

    def __enter__(self) -> RunningEngine:
        return self

    def __exit__(self, *exc: object) -> None:
        self.shutdown()


def _server_args(arguments: EngineArguments, on_cpu: bool, on_phase: Callable[[str], None]) -> Any:
    if not args_of.names_model(arguments):
        if not demo.is_built():
            on_phase("building the demo model (once)")
        arguments = args_of.with_demo_model(arguments, demo.ensure_demo_model())
    elif on_cpu:
        on_phase("no accelerator here: using the CPU, which suits small models")
    return args_of.read_server_args(arguments, on_cpu=on_cpu)


def _start(engine: Any, server_args: Any, children: Children) -> None:
    if not hasattr(engine, "tokenizer_router"):
        raise EngineStartError(
            "This SGLang's Engine can't have several tokenizer workers.", hint="0.5.21 and later can."
        )
    try:
        engine.__init__(server_args=server_args)
    except SubgwError:
        raise
    except Exception as exc:
        reason = children.last_words()[1] or str(exc).strip() or repr(exc)
        raise EngineStartError(f"SGLang's engine did not start: {reason}") from exc
    if not children.all_alive():
        reason = children.last_words()[1] or "one of its processes ended"
        raise EngineStartError(f"SGLang's engine did not start: {reason}")


def _socket_dir(runtime_dir: Path) -> Path:
    longest = len(str(runtime_dir).encode()) + 1 + _LONGEST_NAME
    if longest > _PATH_LIMIT:
        raise ConfigError(
            f"The directory {runtime_dir} has too long a path for unix sockets ({longest} of {_PATH_LIMIT} bytes).",
            hint="Set TMPDIR to a shorter one.",
        )
    sockets = runtime_dir / _SOCKET_DIR
    with writing("The directory for sockets", runtime_dir):
        sockets.mkdir(mode=0o700, parents=True)
    return sockets
