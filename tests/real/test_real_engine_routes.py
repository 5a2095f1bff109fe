"""Engine routes on a real engine: methods of every kind, from the command line; a bad one fails the start by name."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from sglang_subgw.engine_routes import ENVIRONMENT
from support.attached import CommandProcess, attached
from support.real.engine_routes import admin_client, options
from support.stack import generate_body

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(400)]

ROUTES = (
    "/flush_cache",
    "/get_server_info",
    "/weights=get_weights_by_name",
    "/generate",
    "/rpc=collective_rpc",
    "/pause=pause_generation:tm",
    "/continue=continue_generation:tm",
    "/request=generate_request:tm",
    "/loads=get_loads:tm",
    "/abort=abort_request:tm",
)


def post(client: httpx.Client, path: str, **body: Any) -> Any:
    response = client.post(path, json=body)
    assert response.status_code == 200, response.text
    return response.json()


@pytest.fixture(scope="module")
def serving() -> Iterator[CommandProcess]:
    gateway = ("--mode", "process", "--shards", "2", "--port", "0")
    with CommandProcess(*gateway, *options(*ROUTES), program="") as process:
        yield process


@pytest.fixture
def admin(serving: CommandProcess) -> Iterator[httpx.Client]:
    with admin_client(serving.banner) as client:
        yield client


def test_synchronous_methods_of_the_engine(admin: httpx.Client) -> None:
    assert post(admin, "/flush_cache")["success"]
    assert admin.get("/flush_cache").json()["success"]
    info = admin.get("/get_server_info").json()
    assert (info["served_model_name"], info["tokenizer_worker_num"]) == ("demo", 2)
    assert info["internal_states"][0]["memory_usage"]
    weights = post(admin, "/weights", name="model.norm.weight", truncate_size=3)
    assert len(weights) == 3
    assert all(isinstance(value, float) for value in weights)


def test_a_scheduler_says_what_is_wrong_with_an_rpc(admin: httpx.Client) -> None:
    response = admin.post("/rpc", json={"method": "no_such_method"})
    assert response.status_code == 400
    assert "has no attribute 'no_such_method'" in response.json()["message"]


def test_generation_streamed_and_whole(admin: httpx.Client) -> None:
    greedy = {"temperature": 0.0, "max_new_tokens": 8}
    whole = post(admin, "/generate", prompt="The capital of France is", sampling_params=greedy)
    assert whole["text"].startswith(" Paris")
    assert post(admin, "/request", text="The capital of France is", sampling_params=greedy)["text"] == whole["text"]
    for path, name in (("/generate", "prompt"), ("/request", "text")):
        body = {name: "The capital of France is", "sampling_params": greedy, "stream": True}
        *parts, done = [line for line in admin.post(path, json=body).text.split("\n\n") if line]
        assert done == "data: [DONE]"
        assert json.loads(parts[-1].removeprefix("data: "))["text"] == whole["text"]


def test_methods_of_the_manager_with_a_request_object(admin: httpx.Client, serving: CommandProcess) -> None:
    host, port = serving.address
    assert post(admin, "/pause", mode="in_place") is None
    body = generate_body("The function", 4, ignore_eos=True)
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"http://{host}:{port}/generate", json=body, timeout=1)
    assert post(admin, "/continue") is None
    assert httpx.post(f"http://{host}:{port}/generate", json=body, timeout=60).json()["text"]
    assert post(admin, "/abort", rid="nobody's") is None
    assert "num_running_reqs" in json.dumps(admin.get("/loads").json())


def test_what_is_wrong_never_reaches_the_engine(admin: httpx.Client) -> None:
    for path, body, named in (
        ("/pause", {"mode": "stop"}, "mode"),
        ("/pause", {"http_worker_ipc": "ipc:///tmp/x"}, "http_worker_ipc"),
        ("/weights", {"name": "a", "truncate_size": "all"}, "truncate_size"),
        ("/weights", {}, "name"),
        ("/request", {"txt": "a"}, "txt"),
    ):
        response = admin.post(path, json=body)
        assert (response.status_code, response.json()["param"]) == (400, named)
    assert post(admin, "/flush_cache")["success"]


def test_an_engine_without_a_gateway_has_them_by_its_environment() -> None:
    environment = {ENVIRONMENT: "/flush_cache, /info=get_server_info"}
    arguments = ("--engine-only", "--admin-listen", "0")
    with CommandProcess(*arguments, program="", environment=environment) as owner, admin_client(owner.banner) as client:
        assert post(client, "/flush_cache")["success"]
        assert client.get("/info").json()["served_model_name"] == "demo"
        with attached(owner.pid, mode="process") as gateway:
            host, port = gateway.address
            assert httpx.get(f"http://{host}:{port}/health", timeout=60).status_code == 200
            assert post(client, "/flush_cache")["success"]


def test_a_method_that_is_not_there_fails_the_start_by_name() -> None:
    arguments = ("--mode", "process", "--shards", "1", "--port", "0")
    with CommandProcess(*arguments, *options("/flush_cache", "/pause_generation"), program="") as process:
        assert process.wait(200) == 2
    assert process.log.splitlines()[-1] == (
        "sglang_subgw: Engine route '/pause_generation=pause_generation:engine': pause_generation of sglang.Engine is "
        "no such method. It is one of the tokenizer manager: /pause_generation=pause_generation:tm."
    )


@pytest.mark.parametrize("route", ["flush_cache", "/x=_y", "/a:b"])
def test_a_route_that_can_t_be_fails_before_the_engine_starts(route: str) -> None:
    with CommandProcess(*options(route), program="") as process:
        assert process.wait() == 2
    assert process.log.startswith(f"sglang_subgw: Engine route {route!r}: ")
