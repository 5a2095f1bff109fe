"""A client that leaves, at any time, ends its request in the engine exactly once."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from sglang_subgw.worker.call import Call
from support.http_fakes import FakeEngine, app_of, emit, saying, silent

REQUESTS = {
    "/generate": {"text": "a"},
    "/v1/completions": {"prompt": "a", "n": 2},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "a"}], "n": 3},
}


class Connection:
    """An ASGI connection whose client leaves when told to."""

    def __init__(self, body: dict[str, Any]) -> None:
        self._messages = [{"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}]
        self.leave = asyncio.Event()
        self.sent: list[dict[str, Any]] = []
        self.on_send: Callable[[], Awaitable[None]] | None = None

    async def receive(self) -> dict[str, Any]:
        if self._messages:
            return self._messages.pop()
        await self.leave.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: dict[str, Any]) -> None:
        self.sent.append(message)
        if self.on_send is not None:
            await self.on_send()

    async def ask(self, path: str, engine: FakeEngine) -> None:
        headers = [(b"content-type", b"application/json")]
        scope = {"type": "http", "method": "POST", "path": path, "query_string": b"", "headers": headers}
        await app_of(engine)(scope, self.receive, self.send)


@pytest.mark.parametrize("path", list(REQUESTS))
@pytest.mark.parametrize("stream", [False, True])
def test_before_the_first_token(path: str, stream: bool) -> None:
    async def run() -> None:
        engine = FakeEngine(script=silent)
        connection = Connection(REQUESTS[path] | {"stream": stream})
        asking = asyncio.create_task(connection.ask(path, engine))
        await engine.submitted.wait()
        connection.leave.set()
        await asking
        assert connection.sent == []
        assert sorted(engine.aborted) == [sample.rid for sample in engine.calls[0].samples]
        await engine.close()

    asyncio.run(run())


@pytest.mark.parametrize("path", list(REQUESTS))
def test_in_a_stream(path: str) -> None:
    async def script(call: Call) -> None:
        emit(call.samples[0], "Hel")
        await asyncio.Event().wait()

    async def run() -> None:
        engine = FakeEngine(script=script)
        connection = Connection(REQUESTS[path] | {"stream": True})
        asking = asyncio.create_task(connection.ask(path, engine))
        while len(connection.sent) < 2:
            await asyncio.sleep(0)
        connection.leave.set()
        await asking
        assert sorted(engine.aborted) == [sample.rid for sample in engine.calls[0].samples]
        assert all(message.get("more_body", True) for message in connection.sent)
        await engine.close()

    asyncio.run(run())


def test_while_a_slow_client_is_written_to() -> None:
    async def run() -> None:
        engine = FakeEngine(script=saying("a", "b", "c"))
        connection = Connection({"text": "a", "stream": True})
        stuck = asyncio.Event()

        async def block() -> None:
            if len(connection.sent) == 2:
                stuck.set()
                await asyncio.Event().wait()

        connection.on_send = block
        asking = asyncio.create_task(connection.ask("/generate", engine))
        await stuck.wait()
        connection.leave.set()
        await asking
        await engine.close()

    asyncio.run(run())


def test_a_slow_client_gets_merged_text() -> None:
    async def run() -> None:
        engine = FakeEngine(script=saying(*"abcdefgh"))
        connection = Connection(REQUESTS["/v1/completions"] | {"stream": True, "n": 1})
        resume = asyncio.Event()

        async def block() -> None:
            if len(connection.sent) == 2:
                await resume.wait()

        connection.on_send = block
        asking = asyncio.create_task(connection.ask("/v1/completions", engine))
        await engine.submitted.wait()
        while not engine.calls[0].finished:
            await asyncio.sleep(0)
        resume.set()
        await asking
        chunks = [part for m in connection.sent[1:] for part in m["body"].decode().split("\n\n") if part]
        assert chunks.pop() == "data: [DONE]"
        texts = [json.loads(chunk.removeprefix("data: "))["choices"][0]["text"] for chunk in chunks]
        assert texts == ["a", "bcdefgh"]
        assert engine.aborted == []
        await engine.close()

    asyncio.run(run())


def test_before_the_body_has_arrived() -> None:
    async def run() -> None:
        engine = FakeEngine()
        connection = Connection({})
        connection._messages = []
        connection.leave.set()
        await connection.ask("/generate", engine)
        assert (connection.sent, engine.calls) == ([], [])

    asyncio.run(run())


def test_after_the_end_nothing_is_aborted() -> None:
    async def run() -> None:
        engine = FakeEngine()
        connection = Connection({"text": "a"})

        async def leave() -> None:
            connection.leave.set()
            await asyncio.sleep(0)

        connection.on_send = leave
        await connection.ask("/generate", engine)
        assert engine.aborted == []
        assert connection.sent[-1]["more_body"] is False
        await engine.close()

    asyncio.run(run())
