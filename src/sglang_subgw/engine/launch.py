"""Starts SGLang's engine with its router for shards to join, and ends it so that nothing is left."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from ..contract import EngineContract
from ..errors import ConfigError, EngineStartError, SubgwError
from ..shard.tokenize_local import LocalTokenizer
from ..storage import writing
from . import arguments as args_of
from .arguments import EngineArguments
from .children import Children
from .demo import model as demo
from .demo.platform import accelerator_present
from .engine_loop import EngineLoop
from .host import (
    CPU,
    QUIET,
    ChildFailed,
    CrashSignal,
    environment,
    guarded,
    router_errors_reported,
    warnings_ignored,
)
from .router import forwarding_router
from .teardown import close_engine
from .tokenization import TokenizationService
from .watcher import Watcher

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
) -> RunningEngine:
    """Start an engine; without a model in the arguments, the demo model on the CPU.

    `run_scheduler` takes the place of SGLang's run_scheduler_process in the scheduler's process: a simulated one.
    Call it in the main thread. Raises ConfigError for arguments and EngineStartError for an engine that does not come
    up; those and whatever a signal handler raises meanwhile leave no process, shared memory or file behind.
    """
    if threading.current_thread() is not threading.main_thread():
        raise EngineStartError("An engine must be started in the main thread: SGLang installs signal handlers.")
    sockets = _socket_dir(runtime_dir)
    crash_signal = CrashSignal()
    children = Children(sockets, on_phase, crash_signal)
    engine: Any = None
    try:
        with ExitStack() as stack:
            stack.enter_context(guarded(sockets))
            quiet = args_of.is_quiet(arguments)
            stack.enter_context(warnings_ignored(quiet))
            stack.enter_context(environment(QUIET if quiet else {}))
            on_phase("importing SGLang")
            on_cpu = not accelerator_present()
            stack.enter_context(environment(CPU if on_cpu else {}))
            server_args = _server_args(arguments, on_cpu, on_phase)
            engine_class = children.engine_class(run_scheduler)
            stack.enter_context(router_errors_reported())
            stack.enter_context(forwarding_router())
            # Not `engine_class(…)`: an engine whose __init__ fails must be within reach, to be undone.
            engine = object.__new__(engine_class)
            _start(engine, server_args, children)
            crash_signal.launching = False
            on_phase("reading what shards must know")
            return RunningEngine(engine, children, crash_signal, runtime_dir)
    except BaseException:
        crash_signal.launching = False
        close_engine(engine, children, graceful=False)
        crash_signal.close()
        raise


class RunningEngine:
    """An engine that serves: its contract, its death, its end."""

    def __init__(self, engine: Any, children: Children, crash_signal: CrashSignal, runtime_dir: Path) -> None:
        from .facts import contract_from_engine

        self.engine = engine
        """The sglang.Engine; every method works in any thread. Don't call its shutdown: it kills every child process."""
        self.contract: EngineContract = contract_from_engine(engine, runtime_dir, engine_id=secrets.token_hex(6))
        self._children = children
        self._crash_signal = crash_signal
        self._tokenization = _serve_tokenizer(self.contract)
        # SGLang's own watchdog answers a death by killing this process and all its children.
        if (watchdog := engine.tokenizer_manager._subprocess_watchdog) is not None:
            watchdog.stop()
        self._watcher = Watcher(children, engine.tokenizer_router, crash_signal)
        self._watcher.start()
        self.loop = EngineLoop(engine)
        """Where its tokenizer manager's coroutines run."""
        self.loop.start()
        self._watcher.on_death(self.loop.fail)
        self._lock = threading.Lock()
        self._closed = False

    @property
    def child_pids(self) -> tuple[int, ...]:
        """Process ids of the schedulers and detokenizers."""
        return self._children.pids

    def on_death(self, callback: Callable[[str], object]) -> None:
        """Call back with the reason, once and from a thread, when a part of the engine ends by itself."""
        self._watcher.on_death(callback)

    def router_alive(self) -> bool:
        """Whether requests still reach the scheduler."""
        return self._watcher.router_alive()

    def shutdown(self) -> None:
        """Stop every process of the engine and wait for it; remove its files. Safe to call twice."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._watcher.stop()
            if self._tokenization is not None:
                self._tokenization.close()
            self.loop.close()
            # A scheduler on the CPU has nothing to release, and takes seconds over it.
            close_engine(self.engine, self._children, graceful=self.contract.server_args.get("device") != "cpu")
            self._watcher.join()
            Path(self.contract.wire.runtime_dir, "tokenizer.json").unlink(missing_ok=True)
            self._crash_signal.close()

    def __enter__(self) -> RunningEngine:
        return self

    def __exit__(self, *exc: object) -> None:
        self.shutdown()


def _serve_tokenizer(contract: EngineContract) -> TokenizationService | None:
    """For shards without the tokenizers library: read from the same file as every shard's, when the first one asks."""
    model = contract.model
    if not model.tokenization_socket:
        return None
    service = TokenizationService(model.tokenization_socket, lambda: LocalTokenizer(model.tokenizer_file))
    service.start()
    return service


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
    except (Exception, ChildFailed) as exc:
        said = "" if isinstance(exc, ChildFailed) else str(exc).strip()
        reason = children.last_words()[1] or said or repr(exc)
        raise EngineStartError(f"SGLang's engine did not start: {reason}") from exc


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
