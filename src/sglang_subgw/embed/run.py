"""`run`: a whole server in one call, for scripts that end in one."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from ..errors import StartStopped
from .gateway import Gateway


def run(engine_or_args: object = None, **settings: Any) -> None:
    """Serve until a signal, as `uvicorn.run` does: a `Gateway` with these settings, from its start to its end.

    For the main thread. Raises what `Gateway.start` raises, unless it was a signal that stopped it, and EngineDied or
    ShardFailed when it ends by a failure.
    """
    with suppress(StartStopped), Gateway(engine_or_args, **{"handle_signals": True, **settings}) as gateway:
        gateway.wait()
        gateway.raise_failure()
