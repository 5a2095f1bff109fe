"""An sglang.Engine that the caller made: a home for its gateways while there are any, and afterwards as it was."""

from __future__ import annotations

import secrets
import shutil
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ...errors import ConfigError
from ..patches.router import forward_from_now_on
from . import arguments as args_of
from .owned import OwnedEngine

_MODULE: Final = "sglang.srt.entrypoints.engine"


class WrappedEngine(OwnedEngine):
    """The caller's, to be shut down by the caller once its gateways have stopped.

    Its own watchdog is stopped meanwhile: it would end this process, at most a second after a process of the engine's
    has died, whatever its clients have been told by then. Its router forwards frames from now on: one that can't be
    read is dropped, where it would have ended SGLang's own without a word.
    """

    def __init__(self, engine: Any, runtime_dir: Path, engine_id: str) -> None:
        own_worker = engine.tokenizer_manager.tokenizer_ipc_name
        forward_from_now_on(engine.tokenizer_router, engine.port_args.tokenizer_worker_ipc_name, own_worker)
        super().__init__(engine, _StartedProcesses(engine), runtime_dir, engine_id=engine_id)

    def crashed(self) -> None:
        """SIGQUIT has come, by which SGLang's processes say that they crash; for a signal's handler, too."""
        self._watcher.crashed()

    def _take_watchdog(self, services: ExitStack) -> None:
        super()._take_watchdog(services)
        services.callback(self._give_watchdog_back)

    def _give_watchdog_back(self) -> None:
        watchdog = self.engine.tokenizer_manager._subprocess_watchdog
        # Of a death it would make the end of this process, which knows of it already.
        if watchdog is not None and not self._watcher.reason:
            watchdog._stop_event.clear()
            watchdog.start()


@contextmanager
def wrapped(engine: Any, make_runtime_dir: Callable[[], Path]) -> Iterator[WrappedEngine]:
    """The Engine with what gateways need, which all that are on it share.

    Raises ConfigError for an Engine that no shard can join.
    """
    _check(engine)
    with _lock:
        home = _homes.get(engine) or _move_in(engine, make_runtime_dir())
        if home.engine is None:
            home.engine = WrappedEngine(engine, home.path, home.engine_id)
        home.users += 1
        wrapped_engine = home.engine
    try:
        yield wrapped_engine
    finally:
        with _lock:
            home.users -= 1
            if not home.users:
                home.engine = None
                wrapped_engine.end_services()


def is_engine(candidate: object) -> bool:
    """Whether it is an sglang.Engine; imports nothing."""
    module = sys.modules.get(_MODULE)
    return module is not None and isinstance(candidate, module.Engine)


@dataclass
class _Home:
    """What stays the same for as long as the Engine lives: it never forgets the name of a socket it once sent to."""

    path: Path
    engine_id: str
    engine: WrappedEngine | None = None
    users: int = 0


_lock = threading.Lock()
_homes: weakref.WeakKeyDictionary[Any, _Home] = weakref.WeakKeyDictionary()


def _move_in(engine: Any, path: Path) -> _Home:
    weakref.finalize(engine, shutil.rmtree, path, ignore_errors=True)
    home = _homes[engine] = _Home(path, secrets.token_hex(6))
    return home


class _StartedProcesses:
    """Those that the Engine's own watchdog knows; what they say goes where the caller let it go."""

    def __init__(self, engine: Any) -> None:
        watchdog = engine.tokenizer_manager._subprocess_watchdog
        self.processes: dict[str, Any] = dict(zip(watchdog._names, watchdog._processes, strict=True))

    def last_words(self) -> tuple[str, str]:
        """Unknown."""
        return "", ""


def _check(engine: Any) -> None:
    if getattr(engine, "_attached", False):
        raise ConfigError(
            "This Engine is attached to one of another process.", hint="Wrap that one, where it was made."
        )
    if getattr(engine, "tokenizer_router", None) is None:
        raise ConfigError(
            "This Engine has a single tokenizer worker, so that shards can't join it.",
            hint="Make it with tokenizer_worker_num=2: any number above 1 allows for any number of shards.",
        )
    args_of.check_served(engine.server_args)
