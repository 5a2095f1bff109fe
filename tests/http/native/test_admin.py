"""Routes about the server, its health, its models, its cache."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from sglang_subgw.errors import EngineUnavailable
from sglang_subgw.worker.answers.outputs import FlushCacheReqOutput
from support.http_fakes import FakeEngine, ask, client_of, get, with_engine


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


def test_root() -> None:
    assert get("/").json()["server"] == "sglang-subgw"
