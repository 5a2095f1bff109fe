"""What a wire engine sends to one shard: a token at each step for every request, and each one's end."""

from __future__ import annotations

import socket
import time
from collections import deque
from collections.abc import Callable, Iterable
from itertools import repeat
from typing import Any, Final

from ...contract import Slot
from ...simulated.wire.structs import StandIn
from ...wire.zmtp.protocol import Peer, head, hello
from ..engines import CONTEXT_LENGTH
from .credit import messages_seen
from .frames import Frame, FrameMaker

_BUFFER: Final = 1 << 20
"""Bytes, as far as the system allows: a feeder that waits for room is woken for each part."""
_SECONDS: Final = 10.0
"""How long a shard may take nothing."""
_STEPS_AHEAD: Final = 1
_SURE: Final = 0.75
"""Of the time that a shard takes for a step: sooner it will not have taken in the next."""
_LOOK: Final = 0.125
_WEIGHT: Final = 0.2
"""Of the last step in that time: a shard may take in two at once."""
_STEP_SECONDS: Final = (0.0005, 0.01)
"""What is believed of that time, at least and at most."""

_exhaust: Final[Callable[[Iterable[object]], None]] = deque[object](maxlen=0).extend
"""Go through an iterator, for what it does."""


def connect(endpoint: str) -> socket.socket:
    """To a shard's PULL socket, as PUSH; blocks, and raises OSError or WireError when no such socket is there.

    Behind libzmq's API each message goes through a second thread, which costs a feeder as much as many a shard's work
    on it. Here all messages of a step are one write.
    """
    sock = socket.socket(socket.AF_UNIX)
    try:
        sock.settimeout(_SECONDS)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER)
        sock.connect(endpoint.removeprefix("ipc://"))
        sock.sendall(hello("PUSH"))
        peer = Peer("PULL")
        while not peer.ready:
            if not (data := sock.recv(4096)):
                raise ConnectionError("it hung up")
            peer.feed(memoryview(data))
    except BaseException:
        sock.close()
        raise
    return sock


class _FedStream:
    """One request that runs."""

    __slots__ = ("ended", "frame", "limit", "request", "rid", "since", "streams")

    def __init__(self, request: StandIn, since: int) -> None:
        limit = request.sampling_params.max_new_tokens
        self.request = request
        self.rid: str = request.rid
        self.streams: bool = request.stream
        self.limit: int = CONTEXT_LENGTH if limit is None else limit
        self.since = since
        """Its worker's steps before its first: it has made a token at each one since."""
        self.ended: dict[str, Any] | None = None
        self.frame: tuple[bytearray, int] | None = None
        """Its own, and where the number of its tokens is."""

    @property
    def ends_at(self) -> int:
        """The step of its last token."""
        return self.since + self.limit if self.ended is None else 0


class Worker:
    """One shard, and what runs for it.

    A shard is to be the dearest part of what is measured: what costs here for each token, it can't have the processor
    for. So a step calls nothing in Python for each of its streams.
    """

    def __init__(self, endpoint: str, sock: socket.socket, maker: FrameMaker, *, grouped: bool) -> None:
        self.endpoint = endpoint
        self.running: list[_FedStream] = []
        self.slot: Slot | None = None
        self._steps = 0
        self._stepped = 0.0
        self._step_seconds = _STEP_SECONDS[0]
        self._next_end = 0
        """The step at which the first of them ends."""
        self._sent = 0
        self._sock = sock
        self._maker = maker
        self._grouped = grouped
        self._since: list[int] | None = None
        """Of those that stream; None when there are others now."""
        self._frame: Frame | None = None
        self._data = bytearray()
        """Not grouped: a step's messages, one after the other."""
        self._offsets: list[int] = []

    def add(self, request: StandIn) -> None:
        """One more."""
        self.running.append(_FedStream(request, self._steps))
        self._changed()

    def abort(self, rid: str) -> None:
        """End those whose ids begin so at the next step; "" means all."""
        for stream in self.running:
            if stream.rid.startswith(rid):
                stream.ended = {"type": "abort", "message": "Aborted", "status_code": None, "err_type": None}
                self._next_end = 0

    def close(self) -> None:
        """Nothing more is sent."""
        self._sock.close()

    def send(self, frame: bytes | bytearray) -> None:
        """Push a frame; raises OSError as `step` does when the shard is gone."""
        self._sent += 1
        self._sock.sendall(head(len(frame)) + frame)

    def keeps_up(self, slot: Slot) -> bool:
        """Whether it is no more than so many steps behind."""
        return self._sent - messages_seen(slot) <= _STEPS_AHEAD * (1 if self._grouped else len(self.running))

    def wait_seconds(self) -> float:
        """How long there is no need to ask whether it keeps up: each look costs time that the shard could use."""
        since = time.monotonic() - self._stepped
        return max(_SURE * self._step_seconds - since, _LOOK * self._step_seconds)

    def step(self) -> None:
        """A token for every request, and what there is to send."""
        self._steps += 1
        now = time.monotonic()
        least, most = _STEP_SECONDS
        self._step_seconds += _WEIGHT * (max(least, min(most, now - self._stepped)) - self._step_seconds)
        self._stepped = now
        if self._steps >= self._next_end:
            self._end()
        if self._since is None:
            self._prepare()
        assert self._since is not None
        if not self._since:
            return
        steps = self._steps
        counts = [steps - since for since in self._since]
        if self._grouped:
            assert self._frame is not None
            self.send(self._frame.completed(counts))
            return
        _exhaust(map(self._maker.put, repeat(self._data), self._offsets, counts))
        self._sock.sendall(self._data)
        self._sent += len(counts)

    def _changed(self) -> None:
        self._since = None
        self._next_end = min((stream.ends_at for stream in self.running), default=0)

    def _prepare(self) -> None:
        streaming = [stream for stream in self.running if stream.streams]
        self._since = [stream.since for stream in streaming]
        if self._grouped:
            if streaming:
                self._frame = self._maker.frame([stream.request for stream in streaming], grouped=True)
            return
        for stream in streaming:
            if stream.frame is None:
                stream.frame = self._maker.frame([stream.request], grouped=False).single()
        self._data, self._offsets = bytearray(), []
        for frame, offset in (stream.frame for stream in streaming if stream.frame is not None):
            self._data += head(len(frame))
            self._offsets.append(len(self._data) + offset)
            self._data += frame

    def _end(self) -> None:
        going_on = []
        for stream in self.running:
            made = min(self._steps - stream.since, stream.limit)
            if stream.ended is None and made < stream.limit:
                going_on.append(stream)
                continue
            reason = stream.ended or {"type": "length", "length": stream.limit}
            unsent = 1 if stream.streams else made
            self.send(self._maker.last(stream.request, tokens=made, unsent=unsent, reason=reason))
        self.running = going_on
        self._changed()
