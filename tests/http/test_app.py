"""The application: routes that aren't there, cross-origin answers, a stop, a server's other messages."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from support.http_fakes import FakeEngine, app_of, ask, get, with_engine


def test_what_is_not_there_says_so() -> None:
    for path in ("/v1/decisions", "/v1/responses/x/cancel", "/metrics", "/hicache/storage-backend"):
        answer = ask(path, {})
        assert answer.status_code == 404
        assert "does not implement yet" in answer.json()["message"]
    answer = get("/nothing")
    assert (answer.status_code, answer.json()["message"]) == (404, "There is no route /nothing here.")
    answer = get("/generate")
    assert (answer.status_code, answer.json()["message"]) == (405, "GET is not allowed for /generate.")
    assert set(answer.headers["allow"].split(", ")) == {"POST", "PUT"}


def test_a_route_with_get_answers_head() -> None:
    for path in ("/health", "/v1/models", "/v1/models/demo"):
        assert ask(path, method="HEAD").status_code == 200
        assert ask(path, method="PATCH").headers["allow"] == "GET, HEAD"
    assert ask("/flush_cache", method="DELETE").headers["allow"] == "GET, POST, HEAD"
    assert ask("/generate", method="HEAD").status_code == 405


def test_paths_are_taken_as_they_are() -> None:
    for path in ("/health/", "/Health", "/health%20", "/health%0A", "/v1/"):
        assert get(path).status_code == 404, path
    assert get("/%68ealth").status_code == 200
    for path, name in (("/v1/models/a/b%20c", "a/b c"), ("/v1/models/", ""), ("/v1/models/demo/", "demo/")):
        assert get(path).json()["error"]["message"] == f"The model '{name}' does not exist"


@pytest.mark.parametrize("mount", ["", "/sub", "/sub/{tenant}"])
def test_below_another_application(mount: str) -> None:
    async def run() -> list[int]:
        below = Starlette(routes=[Mount(mount, app_of(FakeEngine()))])
        async with httpx.AsyncClient(transport=httpx.ASGITransport(below), base_url="http://shard") as client:
            paths = ("/health", "/v1/models/demo", "/", "/generate", "/health/health", "/sub/health")
            return [(await client.get(mount.format(tenant="one") + path)).status_code for path in paths]

    assert asyncio.run(run()) == [200, 200, 200, 405, 404, 404]


@pytest.mark.parametrize(
    ("query", "timeout"),
    [("", 0.0), ("timeout=1&timeout=2", 2.0), ("timeout=%31%2E5", 1.5), ("timeout=+3", 3.0), ("&&timeout=4&x", 4.0)],
)
def test_of_a_query_parameter_the_last_counts(query: str, timeout: float) -> None:
    engine = FakeEngine()
    assert ask(f"/flush_cache?{query}", engine=engine).status_code == 200
    assert engine.flushed == [timeout]


def test_cross_origin() -> None:
    answer = get("/v1/models", headers={"origin": "http://page"})
    assert answer.headers["access-control-allow-origin"] == "*"
    assert answer.headers["access-control-allow-credentials"] == "true"
    answer = get("/v1/models", headers={"origin": "http://page", "cookie": "a=b"})
    assert answer.headers["access-control-allow-origin"] == "http://page"
    assert "access-control-allow-origin" not in get("/v1/models").headers
    headers = {
        "origin": "http://page",
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization, x-stainless-lang",
    }
    answer = ask("/v1/chat/completions", method="OPTIONS", headers=headers)
    assert answer.status_code == 200
    assert "POST" in answer.headers["access-control-allow-methods"]
    assert answer.headers["access-control-allow-headers"] == "authorization, x-stainless-lang"


def test_a_stop_refuses_new_requests_and_closes() -> None:
    answer = with_engine("POST", "/generate", draining=True)
    assert answer.status_code == 503
    assert answer.headers["connection"] == "close"
    assert "stopping" in answer.json()["message"]


def test_lifespan_and_websockets() -> None:
    async def run(kind: str, *messages: str) -> list[str]:
        queue = list(messages)
        sent: list[str] = []

        async def receive() -> dict[str, Any]:
            return {"type": queue.pop(0)}

        async def send(message: dict[str, Any]) -> None:
            sent.append(message["type"])

        await app_of(FakeEngine())({"type": kind}, receive, send)
        return sent

    done = ["lifespan.startup.complete", "lifespan.shutdown.complete"]
    assert asyncio.run(run("lifespan", "lifespan.startup", "lifespan.shutdown")) == done
    assert asyncio.run(run("websocket", "websocket.connect")) == ["websocket.close"]
