"""A client of the load generator: one connection that sends a request, looks at the answer's bytes, and again."""

from __future__ import annotations

import socket
import time
from array import array
from collections.abc import Callable
from typing import Any, Final, Protocol

from .histogram import Histogram

_BUFFER: Final = bytearray(1 << 18)
_BORDER: Final = b"\n\n"
_LAST_CHUNK: Final = b"0\r\n\r\n"
_SLOW_READ_SECONDS: Final = 0.1
_SLOW_BUFFER_BYTES: Final = 4096
_RETRY_SECONDS: Final = 0.5
_SHOWN_ERRORS: Final = 5


class ClientHost(Protocol):
    """What a connection needs of the generator."""

    stopping: bool

    def watch(self, connection: Connection) -> None:
        """Call its `read` whenever there is something."""

    def forget(self, connection: Connection) -> None:
        """Before it is closed, which takes its descriptor out of epoll."""

    def later(self, seconds: float, call: Callable[[], None]) -> None:
        """Call once after a while."""

    def answered(self) -> None:
        """One more connection has had its first answer."""


class Tally:
    """What a group has seen since the measuring began."""

    __slots__ = (
        "bytes", "errors", "event_seconds", "events", "first", "gaps", "latencies", "reads", "requests", "said",
    )  # fmt: skip

    def __init__(self, event_seconds: float) -> None:
        self.event_seconds = event_seconds
        self.events = self.reads = self.bytes = self.requests = self.errors = 0
        self.first = array("d")
        """From a request to its first byte of body."""
        self.gaps = array("d")
        """Between two reads of one stream that brought events."""
        self.latencies = array("d")
        """From a request to the end of its answer."""
        self.said: list[str] = []
        """The first few errors, also from before."""

    def error(self, text: str) -> None:
        """Count an answer that is none."""
        self.errors += 1
        if len(self.said) < _SHOWN_ERRORS:
            self.said.append(text)

    def to_json(self) -> dict[str, Any]:
        """For the bench."""
        return {
            "events": self.events,
            "reads": self.reads,
            "bytes": self.bytes,
            "requests": self.requests,
            "errors": self.errors,
            "said": self.said,
            "first": Histogram.of(self.first).to_json(),
            "gaps": Histogram.of(self.gaps).to_json(),
            "late": Histogram.of(gap - self.event_seconds for gap in self.gaps).to_json(),
            "latencies": Histogram.of(self.latencies).to_json(),
        }


class Connection:
    """One client: sends its group's request, reads the answer, and again."""

    __slots__ = (
        "_address", "_group", "_head", "_last", "_left", "_load", "_request", "_started", "_tail", "answered",
        "group", "sock", "tally",
    )  # fmt: skip

    def __init__(self, load: ClientHost, group: dict[str, Any], address: Any, tally: Tally) -> None:
        self._load = load
        self._group = group
        self.group: str = group["name"]
        self._address = address
        self._request: bytes = group["request"].encode()
        self.tally = tally
        self.sock: socket.socket | None = None
        self.answered = False

    def begin(self) -> None:
        """Connect, and send the first request."""
        self.sock = sock = socket.socket(
            socket.AF_INET if isinstance(self._address, tuple) else socket.AF_UNIX, socket.SOCK_STREAM
        )
        if self._group["bytes_per_second"]:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SLOW_BUFFER_BYTES)
        try:
            sock.connect(self._address)
            if isinstance(self._address, tuple):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setblocking(False)
            self._send()
        except OSError as exc:
            self._fail(f"no connection: {exc}")
            return
        if self._group["bytes_per_second"]:
            self._load.later(_SLOW_READ_SECONDS, self.read_slowly)
        elif self._group["look_seconds"]:
            self._load.later(self._group["look_seconds"], self.look)
        else:
            self._load.watch(self)

    def read(self) -> None:
        """Take what has arrived."""
        assert self.sock is not None
        try:
            size = self.sock.recv_into(_BUFFER)
        except BlockingIOError:
            return
        except OSError as exc:
            self._fail(f"the connection broke: {exc}")
            return
        self._take(size)

    def read_slowly(self) -> None:
        """Take a little, and come back in a moment."""
        if self.sock is None:
            return
        try:
            size = self.sock.recv_into(_BUFFER, max(1, int(self._group["bytes_per_second"] * _SLOW_READ_SECONDS)))
        except BlockingIOError:
            size = -1
        except OSError as exc:
            self._fail(f"the connection broke: {exc}")
            return
        if size >= 0:
            self._take(size)
        if self.sock is not None:
            self._load.later(_SLOW_READ_SECONDS, self.read_slowly)

    def look(self) -> None:
        """Take what has come since the last time: nobody is woken by each event, on either side."""
        sock = self.sock
        if sock is None:
            return
        self.read()
        # A new connection has a look of its own.
        if self.sock is sock:
            self._load.later(self._group["look_seconds"], self.look)

    def close(self) -> None:
        """Hang up. Safe to call twice."""
        if self.sock is not None:
            self._load.forget(self)
            self.sock.close()
            self.sock = None

    def _send(self) -> None:
        assert self.sock is not None
        self._head: bytes | None = b""
        self._tail = b""
        self._last = 0.0
        self._started = time.monotonic()
        sent = self.sock.send(self._request)
        if sent < len(self._request):
            # A long prompt: nothing else of this generator's can be timed exactly while it goes out.
            self.sock.setblocking(True)
            self.sock.sendall(memoryview(self._request)[sent:])
            self.sock.setblocking(False)

    def _take(self, size: int) -> None:
        """Look at what the buffer holds; no event is copied or parsed."""
        tally = self.tally
        tally.bytes += size
        if not size:
            self._fail("the server closed the connection before the answer's end")
            return
        start = 0
        if self._head is not None:
            start = self._read_head(size)
            if start >= size or self.sock is None:
                return
        if self._left >= 0:
            self._left -= size - start
            if self._left <= 0:
                self._end()
            return
        events = _BUFFER.count(_BORDER, start, size)
        if _BUFFER[start] == 10 and self._tail[-1:] == b"\n":
            events += 1
        if events:
            now = time.monotonic()
            tally.events += events
            tally.reads += 1
            if self._last:
                tally.gaps.append(now - self._last)
            else:
                tally.first.append(now - self._started)
                self._answer()
            self._last = now
        tail = bytes(_BUFFER[max(start, size - 5) : size])
        if len(tail) < 5:
            tail = (self._tail + tail)[-5:]
        if tail == _LAST_CHUNK:
            self._end()
        else:
            self._tail = tail

    def _read_head(self, size: int) -> int:
        """Where the body begins in the buffer, `size` while it hasn't; sets what the rest is read by."""
        assert self._head is not None
        before = len(self._head)
        self._head += bytes(_BUFFER[:size])
        head, border, body = self._head.partition(b"\r\n\r\n")
        if not border:
            return size
        self._head = None
        lines = head.decode("latin-1").split("\r\n")
        fields = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
        if lines[0].split(" ")[1:2] != ["200"]:
            self._fail(f"{lines[0]}: {body[:200].decode(errors='replace')}")
            return size
        self._left = int(fields["content-length"]) if "content-length" in fields else -1
        if self._left == 0:
            self._end()
            return size
        return len(head) + len(border) - before

    def _answer(self) -> None:
        if not self.answered:
            self.answered = True
            self._load.answered()

    def _end(self) -> None:
        """The answer is complete."""
        tally = self.tally
        tally.requests += 1
        tally.latencies.append(time.monotonic() - self._started)
        self._answer()
        if self._group["reconnect"]:
            self.close()
        pause = self._group["pause_seconds"]
        if pause:
            self._load.later(pause, self._again)
        else:
            self._again()

    def _again(self) -> None:
        if self._load.stopping:
            return
        if self.sock is None:
            self.begin()
            return
        try:
            self._send()
        except OSError as exc:
            self._fail(f"the connection broke: {exc}")

    def _fail(self, text: str) -> None:
        self.tally.error(text)
        self._answer()
        self.close()
        if not self._load.stopping:
            self._load.later(_RETRY_SECONDS, self._again)
