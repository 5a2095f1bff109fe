"""The official client, sync and async, against a real server."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
import uvicorn

from sglang_subgw.errors import EngineUnavailable
from support.http_fakes import FakeEngine, app_of, saying, silent

openai = pytest.importorskip("openai")

USER = [{"role": "user", "content": "Hi"}]


@contextlib.asynccontextmanager
async def server(engine: FakeEngine) -> AsyncIterator[str]:
    """The application on a port of its own."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        config = uvicorn.Config(app_of(engine), log_config=None, lifespan="on", ws="none")
        running = uvicorn.Server(config)
        running.capture_signals = contextlib.nullcontext  # type: ignore[method-assign]
        serving = asyncio.create_task(running.serve(sockets=[listener]))
        while not running.started:
            await asyncio.sleep(0.001)
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            running.should_exit = True
            await serving
            await engine.close()


def with_async(test: Callable[[Any, FakeEngine], Awaitable[None]], **engine: Any) -> None:
    async def run() -> None:
        fake = FakeEngine(**engine)
        async with (
            server(fake) as url,
            openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client,
        ):
            await test(client, fake)

    asyncio.run(run())


def with_sync(test: Callable[[Any], None], **engine: Any) -> None:
    async def run() -> None:
        async with server(FakeEngine(**engine)) as url:

            def call() -> None:
                with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
                    test(client)

            await asyncio.to_thread(call)

    asyncio.run(run())


def test_sync() -> None:
    def test(client: Any) -> None:
        assert client.models.list().data[0].id == "demo"
        answer = client.completions.create(model="demo", prompt="a", logprobs=1)
        assert (answer.choices[0].text, answer.choices[0].finish_reason) == ("Hello", "stop")
        assert answer.choices[0].logprobs.tokens == list("Hello")
        chunks = list(client.completions.create(model="demo", prompt="a", stream=True))
        assert "".join(chunk.choices[0].text for chunk in chunks) == "Hello"
        chat = client.chat.completions.create(model="demo", messages=USER, logprobs=True, top_logprobs=1, n=2)
        assert [choice.message.content for choice in chat.choices] == ["Hello", "Hello"]
        assert chat.choices[0].logprobs.content[0].token == "H"
        assert chat.usage.total_tokens == 15
        stream = client.chat.completions.create(
            model="demo", messages=USER, stream=True, stream_options={"include_usage": True}
        )
        *chunks, usage = list(stream)
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "Hello"
        assert usage.usage.completion_tokens == 5

    with_sync(test)


def test_async() -> None:
    async def test(client: Any, engine: FakeEngine) -> None:
        chat = await client.chat.completions.create(model="demo", messages=USER)
        assert chat.choices[0].message.content == "Hello"
        stream = await client.chat.completions.create(model="demo", messages=USER, stream=True)
        assert "".join([chunk.choices[0].delta.content or "" async for chunk in stream]) == "Hello"
        answer = await client.completions.create(model="demo", prompt=["a", "b"])
        assert [choice.text for choice in answer.choices] == ["Hello", "Hello"]

    with_async(test)


def test_error_classes() -> None:
    def test(client: Any) -> None:
        with pytest.raises(openai.BadRequestError, match="'n' must be at least 1") as caught:
            client.chat.completions.create(model="demo", messages=USER, n=0)
        assert caught.value.param == "n"
        with pytest.raises(openai.BadRequestError, match="temperature"):
            client.completions.create(model="demo", prompt="a", temperature=-1)
        with pytest.raises(openai.BadRequestError, match="Field 'tools' is not supported"):
            client.chat.completions.create(
                model="demo", messages=USER, tools=[{"type": "function", "function": {"name": "f"}}]
            )
        with pytest.raises(openai.BadRequestError, match="Unknown field 'colour'"):
            client.completions.create(model="demo", prompt="a", extra_body={"colour": 1})
        with pytest.raises(openai.NotFoundError, match="does not exist"):
            client.chat.completions.create(model="gpt-9", messages=USER)
        with pytest.raises(openai.NotFoundError):
            client.moderations.create(model="demo", input="a")
        assert client.completions.create(model="demo", prompt="a").choices[0].text == "Hello"

    with_sync(test)


def test_an_error_in_a_stream_is_raised_by_the_client() -> None:
    abort = {"type": "abort", "message": "out of memory", "status_code": 503}

    def test(client: Any) -> None:
        stream = client.chat.completions.create(model="demo", messages=USER, stream=True)
        assert [next(stream).choices[0].delta.content for _ in range(2)] == ["", "Hel"]
        with pytest.raises(openai.APIError, match="out of memory") as caught:
            next(stream)
        assert caught.value.type == "SERVICE_UNAVAILABLE"

    with_sync(test, script=saying("Hel", "", finish=abort))


def test_an_unavailable_engine_is_an_internal_server_error() -> None:
    async def test(client: Any, engine: FakeEngine) -> None:
        engine.refusal = EngineUnavailable("The engine is gone.")
        with pytest.raises(openai.InternalServerError, match="The engine is gone"):
            await client.chat.completions.create(model="demo", messages=USER)

    with_async(test)


def test_a_client_that_gives_up_ends_its_request() -> None:
    async def test(client: Any, engine: FakeEngine) -> None:
        asking = asyncio.create_task(client.chat.completions.create(model="demo", messages=USER))
        await engine.submitted.wait()
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        while not engine.aborted:
            await asyncio.sleep(0.001)

    with_async(test, script=silent)


def test_a_stop_closes_kept_connections() -> None:
    async def test(client: Any, engine: FakeEngine) -> None:
        await client.models.list()
        engine.draining = True
        with pytest.raises(openai.InternalServerError, match="stopping") as caught:
            await client.chat.completions.create(model="demo", messages=USER)
        assert caught.value.response.headers["connection"] == "close"

    with_async(test)
