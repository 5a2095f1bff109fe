"""`python -m sglang_subgw attach PID|NAME`: a gateway on an engine that another process owns; needs no sglang."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial

from ..engine.attach.attached import AttachedEngine
from .parser import parse_attach
from .run_gateway import ENGINE_STOPPING, run_gateway
from .session import run
from .signals import Signals


def attach(argv: Sequence[str]) -> int:
    """Serve until a signal or the engine's end; exit status as of `serve`."""
    command = parse_attach(argv)
    return run(
        command.config.log_level,
        lambda signals: run_gateway(command.config, signals, partial(_attached, command.target, signals)),
    )


@contextmanager
def _attached(target: str, signals: Signals, on_phase: Callable[[str], None]) -> Iterator[AttachedEngine]:
    on_phase(f"attaching to {target}")
    with ExitStack() as stack:
        with signals.held():
            engine = stack.enter_context(AttachedEngine.attach(target))
            engine.on_stopping(lambda: signals.events.put(ENGINE_STOPPING))
        yield engine
