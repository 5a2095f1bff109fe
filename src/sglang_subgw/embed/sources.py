"""Where a gateway's engine comes from: made for it, made by the caller, or somebody else's."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Final

from ..config import GatewayConfig
from ..contract.segment import NAME_PREFIX
from ..engine.attach.attached import AttachedEngine
from ..engine.launch import arguments as args_of
from ..engine.launch.arguments import EngineArguments
from ..engine.launch.cancellation import Cancellation
from ..engine.launch.wrapped import is_engine, wrapped
from ..errors import ConfigError
from ..gateway import Engine
from ..gateway.runtime import make_runtime_dir, runtime_dir
from .engine_process import engine_of_its_own_process

_WHAT: Final = (
    "It takes an sglang.Engine; a dict or a list of SGLang's arguments for an engine of its own; the pid or the "
    "segment's name of another process's engine; or nothing, for a demo model."
)


def open_engine(
    source: object,
    *,
    config: GatewayConfig,
    address: tuple[str, int] | None,
    on_phase: Callable[[str], None],
    cancellation: Cancellation,
) -> AbstractContextManager[Engine]:
    """A context with the engine that `source` means; leaving it ends only what was made for it.

    `address` is where the gateway of `config` listens, which an engine that is made is told. Raises ConfigError for
    what means no engine.
    """
    match source:
        case bool():
            pass
        case int():
            return AttachedEngine.attach(str(source))
        case str():
            return AttachedEngine.attach(_checked(source))
        case _ if _is_arguments(source):
            arguments: Any = source or {}
            return _made(arguments, config, address, on_phase, cancellation)
        case _ if is_engine(source):
            return wrapped(source, make_runtime_dir)
        case _ if hasattr(source, "contract") and hasattr(source, "on_death"):
            engine: Any = source
            return nullcontext(engine)
    raise ConfigError(f"A gateway has no engine by {source!r}.", hint=_WHAT)


def is_made_elsewhere(source: object) -> bool:
    """Whether, in the calling thread, `open_engine` makes an engine in a process of its own."""
    can_launch_here = threading.current_thread() is threading.main_thread() and asyncio._get_running_loop() is None
    return _is_arguments(source) and not can_launch_here


def _is_arguments(source: object) -> bool:
    return source is None or (isinstance(source, Mapping | Sequence) and not isinstance(source, str | bytes))


def _checked(target: str) -> str:
    if not (target.isdecimal() or target.startswith(NAME_PREFIX)):
        raise ConfigError(f"{target!r} is neither a pid nor the name of an engine's segment.", hint=_WHAT)
    return target


def _made(
    arguments: EngineArguments,
    config: GatewayConfig,
    address: tuple[str, int] | None,
    on_phase: Callable[[str], None],
    cancellation: Cancellation,
) -> AbstractContextManager[Engine]:
    args_of.check_worker_count(arguments, config.shards)
    if address is not None:
        arguments = args_of.with_address(arguments, *address)
    if not is_made_elsewhere(arguments):
        return _launched(arguments, on_phase, cancellation)
    return engine_of_its_own_process(arguments, config, on_phase=on_phase, cancellation=cancellation)


@contextmanager
def _launched(
    arguments: EngineArguments, on_phase: Callable[[str], None], cancellation: Cancellation
) -> Iterator[Engine]:
    # Not before: attaching needs none of it, and works where it can't be had.
    from ..engine.launch.launch import launch

    with (
        runtime_dir() as path,
        launch(arguments, runtime_dir=path, on_phase=on_phase, cancellation=cancellation) as engine,
    ):
        yield engine
