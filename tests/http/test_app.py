"""The application: routes that aren't there, cross-origin answers, a stop, a server's other messages."""

from __future__ import annotations

import asyncio
from typing import Any

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
