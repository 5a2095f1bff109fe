"""The engine's side: one per engine, for the workers of all its gateways.

A worker that ends leaves its sections as if it had done so itself; nobody waits for it any longer.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import itertools
import logging
import socket
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any, cast

from ..errors import RequestRejected, SubgwError
from ..system import private_socket
from . import frames as frames

log = logging.getLogger("sglang_subgw.engine")

type Result = tuple[Any, bytes]
type ThreadCall = Callable[[dict[str, Any], bytes], Result]
type Call = ThreadCall | Callable[[dict[str, Any], bytes], Coroutine[Any, Any, Result]]
"""What the engine's process does for a worker: plain values and bytes in, plain values and bytes out.

A coroutine function runs on the coordinator's loop, and is cancelled when its worker gives it up or dies; any other
function runs in a thread.
"""

type Stream = Callable[[dict[str, Any], bytes], AsyncIterator[Any]]
"""The same, item by item, on the coordinator's loop."""


class Coordinator:
    """Serves from `start` to `close`, on a thread of its own."""

    def __init__(
        self,
        path: str | Path,
        state: dict[str, Any],
        calls: Mapping[str, Call] | None = None,
        streams: Mapping[str, Stream] | None = None,
    ) -> None:
        self.state = state
        self._path = Path(path)
        self._calls = dict(calls or {})
        self._streams = dict(streams or {})
        self._members: set[_Member] = set()
        self._sections: dict[str, _Section] = {}
        self._tellings: dict[int, _Telling] = {}
        self._numbers = itertools.count(1)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._listener: socket.socket | None = None
        self._thread = threading.Thread(target=self._run, name="subgw-coordinator")
        self._stop = asyncio.Event()

    def start(self) -> None:
        """Listen, for this user only; raises StorageError when the socket can't be made."""
        self._listener = private_socket.listen(self._path, "The coordinator's socket")
        # Not the process's default, which SGLang makes uvloop's: its servers can't close their clients.
        self._loop = asyncio.SelectorEventLoop()
        self._thread.start()

    def close(self) -> None:
        """End every connection and the thread. Safe to call twice."""
        if self._listener is None or self._loop is None:
            return
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        self._listener = None
        self._path.unlink(missing_ok=True)

    def change(self, **state: Any) -> None:
        """Change the state and tell every worker, without waiting for them; from any thread, also after the end."""
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(lambda: self._tell("apply", {}, state))

    # The thread.

    def _run(self) -> None:
        loop = self._loop
        assert loop is not None
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        assert self._listener is not None
        server = await asyncio.start_unix_server(self._on_connection, sock=self._listener)
        try:
            await self._stop.wait()
        finally:
            # A server that is closed does not take what it has just accepted among its clients: it would stay open.
            asyncio.get_running_loop().remove_reader(self._listener)
            for _ in range(2):
                await asyncio.sleep(0)
            server.close()
            server.close_clients()
            await server.wait_closed()

    async def _on_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        member = _Member(writer)
        try:
            while True:
                message, blob = await frames.read(reader)
                self._on_message(member, message, blob)
                await writer.drain()
        except (EOFError, ConnectionError):
            pass
        except (OSError, ValueError, KeyError, TypeError) as exc:
            log.error("The connection to worker %s ended: %r", member.name, exc)
        finally:
            self._on_gone(member)
            writer.close()

    def _on_message(self, member: _Member, message: dict[str, Any], blob: bytes) -> None:
        match message["op"]:
            case "join":
                member.name = message["name"]
                self._members.add(member)
                member.answer(message, self.state)
            case "acquire":
                section = self._sections.setdefault(message["section"], _Section())
                section.queue.append(_Ticket(member, message))
                self._grant(section)
            case "release":
                self._release(message["section"], member, message["ticket"])
            case "tell":
                telling = self._tell(message["kind"], message["body"], message["state"], member, message)
                if message["timeout"] is not None:
                    telling.timer = asyncio.get_running_loop().call_later(message["timeout"], self._on_late, telling)
            case "done":
                if (told := self._tellings.get(message["told"])) is not None:
                    told.on_done(member, message)
                    self._finish(told)
            case "call":
                member.run(message["id"], self._call(member, message, blob))
            case "stream":
                member.run(message["id"], self._stream(member, message, blob))
            case "end":
                member.end(message["id"])
            case other:
                raise ValueError(f"{other!r} is not something to ask of the coordinator")

    # What workers are told.

    def _tell(
        self,
        kind: str,
        body: dict[str, Any],
        state: dict[str, Any],
        teller: _Member | None = None,
        question: dict[str, Any] | None = None,
    ) -> _Telling:
        # Before anybody hears of it: who joins from now on sees it as well.
        self.state = {**self.state, **state}
        number = next(self._numbers)
        telling = self._tellings[number] = _Telling(number, kind, set(self._members), teller, question)
        for member in telling.open:
            member.send({"told": number, "kind": kind, "body": body, "state": state})
        self._finish(telling)
        return telling

    def _on_late(self, telling: _Telling) -> None:
        names = ", ".join(sorted(member.name for member in telling.open))
        telling.problems.append(f"{names} did not do it within {(telling.question or {})['timeout']:g} s")
        telling.open.clear()
        self._finish(telling)

    def _finish(self, telling: _Telling) -> None:
        if telling.open or self._tellings.pop(telling.number, None) is None:
            return
        if telling.timer is not None:
            telling.timer.cancel()
        if telling.teller is not None and telling.question is not None:
            if telling.problems:
                error = f"Not every worker of the engine did {telling.kind!r}: {'; '.join(telling.problems)}."
                telling.teller.refuse(telling.question, error)
            else:
                telling.teller.answer(telling.question, telling.results)

    # Sections.

    def _grant(self, section: _Section) -> None:
        if section.holder is None and section.queue:
            ticket = section.holder = section.queue.popleft()
            ticket.member.answer(ticket.question, self.state)

    def _release(self, name: str, member: _Member, number: int) -> None:
        section = self._sections[name]
        section.queue = deque(t for t in section.queue if (t.member, t.number) != (member, number))
        if section.holder is not None and (section.holder.member, section.holder.number) == (member, number):
            self._leave(section)

    def _leave(self, section: _Section) -> None:
        assert section.holder is not None
        if after := section.holder.question.get("after"):
            self._tell("apply", {}, after)
        section.holder = None
        self._grant(section)

    def _on_gone(self, member: _Member) -> None:
        self._members.discard(member)
        member.gone = True
        member.end_all()
        for telling in list(self._tellings.values()):
            telling.open.discard(member)
            self._finish(telling)
        for section in self._sections.values():
            section.queue = deque(ticket for ticket in section.queue if ticket.member is not member)
            if section.holder is not None and section.holder.member is member:
                self._leave(section)

    # What only the engine's process can do.

    async def _call(self, member: _Member, message: dict[str, Any], blob: bytes) -> None:
        call = self._calls.get(message["method"])
        if call is None:
            member.refuse(message, f"This engine's side has no {message['method']!r}.", rejected=True)
            return
        try:
            arguments = message["arguments"]
            if inspect.iscoroutinefunction(call):
                value, data = await call(arguments, blob)
            else:
                value, data = await asyncio.to_thread(cast("ThreadCall", call), arguments, blob)
            member.answer(message, value, data)
        except Exception as exc:  # Its sender must hear of it, whatever it is.
            self._refuse(member, message, exc)

    async def _stream(self, member: _Member, message: dict[str, Any], blob: bytes) -> None:
        stream = self._streams.get(message["method"])
        if stream is None:
            member.refuse(message, f"This engine's side has no stream {message['method']!r}.", rejected=True)
            return
        try:
            async for item in stream(message["arguments"], blob):
                member.answer(message, item)
            member.send({"id": message["id"], "end": True})
        except Exception as exc:  # As above.
            self._refuse(member, message, exc)

    def _refuse(self, member: _Member, message: dict[str, Any], exc: Exception) -> None:
        text = str(exc) if isinstance(exc, SubgwError) else f"{type(exc).__name__}: {exc}"
        member.refuse(message, text, rejected=isinstance(exc, (RequestRejected, ValueError, TypeError)))


class _Member:
    """One worker's connection."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self.name = "that has not joined"
        self.gone = False
        self._writer = writer
        self._tasks: dict[int, asyncio.Task[None]] = {}

    def send(self, message: dict[str, Any], blob: bytes = b"") -> None:
        if not self.gone:
            frames.write(self._writer, message, blob)

    def answer(self, question: dict[str, Any], value: Any, blob: bytes = b"") -> None:
        self.send({"id": question["id"], "value": value}, blob)

    def refuse(self, question: dict[str, Any], error: str, *, rejected: bool = False) -> None:
        self.send({"id": question["id"], "error": error, "rejected": rejected})

    def run(self, number: int, coroutine: Coroutine[Any, Any, None]) -> None:
        """Work for it, until it is done or the worker ends it."""
        task = self._tasks[number] = asyncio.get_running_loop().create_task(coroutine)
        task.add_done_callback(lambda _: self._tasks.pop(number, None))

    def end(self, number: int) -> None:
        """Nobody wants that work any longer."""
        if (task := self._tasks.get(number)) is not None:
            task.cancel()

    def end_all(self) -> None:
        """The worker is gone."""
        for task in self._tasks.values():
            task.cancel()


class _Ticket:
    def __init__(self, member: _Member, question: dict[str, Any]) -> None:
        self.member = member
        self.question = question
        self.number = question["ticket"]


class _Section:
    def __init__(self) -> None:
        self.holder: _Ticket | None = None
        self.queue: deque[_Ticket] = deque()


class _Telling:
    """Something that was told, and who has not done it yet."""

    def __init__(
        self, number: int, kind: str, members: set[_Member], teller: _Member | None, question: dict[str, Any] | None
    ) -> None:
        self.number = number
        self.kind = kind
        self.open = members
        self.teller = teller
        self.question = question
        self.results: list[Any] = []
        self.problems: list[str] = []
        self.timer: asyncio.TimerHandle | None = None

    def on_done(self, member: _Member, message: dict[str, Any]) -> None:
        self.open.discard(member)
        if "error" in message:
            self.problems.append(f"{member.name} failed with {message['error']}")
        else:
            self.results.append(message.get("value"))
