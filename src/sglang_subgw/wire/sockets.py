"""A shard's two sockets: PULL, bound to its own name, and PUSH to the engine's router."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from typing import Final

from ..contract import WireFacts
from ..errors import WireError
from ..system.storage import FREE_SPACE, SHORTER_PATH
from .zmtp.pull import Pull
from .zmtp.push import Push

_LINGER_SECONDS: Final = 0.5
_IPC: Final = "ipc://"


class WorkerSocket:
    """Frames to and from the engine on one event loop; `close` leaves no socket file."""

    def __init__(self, wire: WireFacts, endpoint: str, loop: asyncio.AbstractEventLoop) -> None:
        """Raises WireError for what can't be opened."""
        own, router = _path(endpoint), _path(wire.worker_endpoint)
        try:
            self._pull = Pull(own, loop)
            try:
                self._push = Push(router, loop)
            except BaseException:
                self._pull.close()
                raise
        except OSError as exc:
            full = exc.errno in (errno.ENOSPC, errno.EDQUOT)
            raise WireError(
                f"The shard's sockets can't be opened ({endpoint}): {exc.strerror or exc}.",
                hint=FREE_SPACE if full else SHORTER_PATH if exc.errno is None else "",
            ) from exc

    def start(
        self, on_frames: Callable[[list[bytes]], None], on_failure: Callable[[Exception], None] | None = None
    ) -> None:
        """Call `on_frames` with all that came by each wake-up from now on, or `on_failure`, once, when that is over."""
        self._pull.start(on_frames, on_failure)

    def send(self, frame: bytes) -> None:
        """Queue a frame for the router; never blocks."""
        self._push.send(frame)

    def look(self) -> None:
        """See to what a lost wake-up may have left; raises WireError when the sockets can't be used any more."""
        self._pull.look()
        self._push.look()

    def close(self) -> None:
        """Stop, and unlink the shard's own socket file; safe to call twice."""
        self._pull.close()
        # As SGLang's: a stop doesn't wait for a router that is gone.
        self._push.close(_LINGER_SECONDS)


def _path(endpoint: str) -> str:
    if not endpoint.startswith(_IPC):
        raise WireError(f"A shard speaks to an engine on its own machine, at {_IPC}…, and not at {endpoint!r}.")
    return endpoint.removeprefix(_IPC)
