"""The control channel between the gateway and one shard: small JSON messages and descriptors, the same in every mode.

A SOCK_SEQPACKET pair keeps message borders, passes descriptors, and tells each side at once when the other is gone.
"""

from __future__ import annotations

import json
import os
import socket
from typing import Any, Final, Self

_MAX_MESSAGE: Final = 65536
_MAX_FDS: Final = 4


class ChannelClosedError(Exception):
    """Raised by `Channel.receive` and `send` when the other side is gone."""


class DescriptorLostError(Exception):
    """Raised by `Channel.receive` for a message whose descriptor this process, with too many open, had no place for."""

    def __init__(self, kind: str) -> None:
        super().__init__(f"no place for the descriptor of {kind!r}: too many open files")
        self.kind = kind


class Channel:
    """One end of a control channel; never blocks once `setblocking(False)` was called."""

    __slots__ = ("_sock",)

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock

    @classmethod
    def pair(cls) -> tuple[Self, Self]:
        """Two connected ends; the second is meant for the shard."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        return cls(ours), cls(theirs)

    @classmethod
    def from_fd(cls, fd: int) -> Self:
        """Take over a descriptor that was handed down."""
        return cls(socket.socket(fileno=fd))

    def fileno(self) -> int:
        """The descriptor, for a selector or an event loop."""
        return self._sock.fileno()

    def detach(self) -> int:
        """Give the descriptor away; this end is then closed without closing it."""
        return self._sock.detach()

    def setblocking(self, blocking: bool) -> None:
        """As socket.setblocking."""
        self._sock.setblocking(blocking)

    def send(self, kind: str, *, fds: tuple[int, ...] = (), **fields: Any) -> None:
        """Send one message; raises ChannelClosedError when nobody is there, BlockingIOError when nobody reads."""
        data = json.dumps({"kind": kind, **fields}).encode()
        if len(data) > _MAX_MESSAGE:
            raise ValueError(f"A channel message of {len(data)} bytes is over {_MAX_MESSAGE}: {kind}.")
        try:
            if fds:
                socket.send_fds(self._sock, [data], list(fds))
            else:
                self._sock.send(data)
        except BlockingIOError:
            raise
        except OSError as exc:
            raise ChannelClosedError(str(exc)) from exc

    def receive(self) -> tuple[dict[str, Any], list[int]]:
        """The next message and its descriptors; ChannelClosedError at the end, BlockingIOError when none waits.

        A message whose descriptor is lost raises DescriptorLostError; the next one can be received all the same.
        """
        try:
            data, fds, flags, _ = socket.recv_fds(self._sock, _MAX_MESSAGE, _MAX_FDS, socket.MSG_CMSG_CLOEXEC)
        except BlockingIOError:
            raise
        except OSError as exc:
            raise ChannelClosedError(str(exc)) from exc
        if not data:
            raise ChannelClosedError("the other side closed the channel")
        message: dict[str, Any] = json.loads(data)
        if flags & socket.MSG_CTRUNC:
            for fd in fds:
                os.close(fd)
            raise DescriptorLostError(message["kind"])
        return message, fds

    def close(self) -> None:
        """Close this end. Safe to call twice."""
        self._sock.close()
