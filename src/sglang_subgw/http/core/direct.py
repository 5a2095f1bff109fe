"""What a server may offer below ASGI's `send` and `receive`; a shard's own does, a test's or another need not."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Final, Protocol

from .body_stream import Body

EXTENSION: Final = "sglang_subgw.direct"
"""The key in the scope's `extensions`."""


class DirectSend(Protocol):
    """The extension, for one response."""

    @property
    def send(self) -> Any:
        """The server's own: where something has wrapped it, the body must go through the wrapper."""

    def body(self) -> Body:
        """The body of the response, which `send` has begun and will end."""

    def corked(self) -> AbstractContextManager[None]:
        """What `send` writes within this goes out as one."""

    def on_gone(self, callback: Callable[[], None] | None) -> None:
        """Call back, once and at once if it has happened, when the client has left; None ends that."""
