"""Routes about the server, routes that aren't there, cross-origin answers, and a stop."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from sglang_subgw.errors import EngineUnavailable
from sglang_subgw.worker.answers.outputs import FlushCacheReqOutput
from support.http_fakes import FakeEngine, ask, client_of, contract


def get(path: str, **options: Any) -> httpx.Response:
    answer: httpx.Response = ask(path, method="GET", **options)
    return answer


def with_engine(method: str, path: str, **changes: Any) -> httpx.Response:
    def engine() -> FakeEngine:
        engine = FakeEngine()
        for name, value in changes.items():
            setattr(engine, name, value)
        return engine

    answer: httpx.Response = ask(path, engine=engine, method=method)
    return answer


@pytest.mark.parametrize("path", ["/health", "/health_generate", "/ready", "/ping"])
def test_health(path: str) -> None:
    assert get(path).status_code == 200
    assert with_engine("GET", path, draining=True).status_code == 503


def test_health_asks_the_engine() -> None:
    assert with_engine("GET", "/health", healthy=False).status_code == 503


@pytest.mark.parametrize("path", ["/model_info", "/get_model_info"])
def test_model_info(path: str) -> None:
    info = get(path).json()
    assert info["served_model_name"] == "demo"
    assert info["load_format"] == "dummy"
    assert info["is_generation"] is True
    assert info["weight_version"] == "default"


@pytest.mark.parametrize("path", ["/server_info", "/get_server_info"])
def test_server_info_shows_the_mode_and_every_shard(path: str) -> None:
    info = get(path).json()
    assert info["internal_states"] == [{"last_gen_throughput": 1.0}]
    assert info["version"] == "0.5.23"
    assert info["status"] == "ready"
    assert info["sglang_subgw"]["mode"] == "subinterp"
    assert info["sglang_subgw"]["shard"] == 2
    assert [shard["state"] for shard in info["sglang_subgw"]["shards"]] == ["ready"] * 4


def test_server_info_is_there_when_the_engine_does_not_answer() -> None:
    async def gone() -> list[dict[str, Any]]:
        raise EngineUnavailable("no answer")

    info = with_engine("GET", "/server_info", async_get_internal_state=gone).json()
    assert info["internal_states"] == []


def test_models() -> None:
    [card] = get("/v1/models").json()["data"]
    assert card | {"created": 0} == {
        "id": "demo",
        "object": "model",
        "created": 0,
        "owned_by": "sglang",
        "root": "demo",
        "parent": None,
        "max_model_len": 256,
    }
    assert get("/v1/models/demo").json()["id"] == "demo"
    missing = get("/v1/models/a/b")
    assert missing.status_code == 404
    assert missing.json()["error"]["code"] == "model_not_found"


def test_abort() -> None:
    async def run() -> None:
        engine = FakeEngine()
        async with client_of(engine) as client:
            assert (await client.post("/abort_request", json={"rid": "x"})).status_code == 200
            assert (await client.post("/abort_request", json={"abort_all": True})).status_code == 200
            for body in ({}, {"rid": ""}, {"rid": 3}, {"rids": "x"}):
                answer = await client.post("/abort_request", json=body)
                assert answer.status_code == 400
        assert engine.abort_calls == [("x", False), ("", True)]

    asyncio.run(run())


def test_flush_cache() -> None:
    assert get("/flush_cache").text.startswith("Cache flushed.")
    assert ask("/flush_cache?timeout=1.5").status_code == 200
    assert get("/flush_cache?timeout=-1").status_code == 400
    assert get("/flush_cache?timeout=soon").status_code == 400
    failed = with_engine("POST", "/flush_cache", flush_answer=FlushCacheReqOutput(success=False, message="busy"))
    assert (failed.status_code, failed.text) == (400, "busy")


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


def test_root() -> None:
    assert get("/").json()["server"] == "sglang-subgw"


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


def test_reasoning_is_refused_unless_it_may_stay_in_the_content() -> None:
    body = {"messages": [{"role": "user", "content": "a"}]}

    def engine() -> FakeEngine:
        return FakeEngine(contract(reasoning_parser="qwen3"))

    answer = ask("/v1/chat/completions", body, engine)
    assert (answer.status_code, answer.json()["param"]) == (400, "separate_reasoning")
    assert ask("/v1/chat/completions", body | {"separate_reasoning": False}, engine).status_code == 200


def test_lifespan_and_websockets() -> None:
    from support.http_fakes import app_of

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
