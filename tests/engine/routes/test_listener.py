"""The admin listener on an engine of every kind of method: who is called where, and what its answer is."""

from __future__ import annotations

import json
import logging
import os
import socket
import stat
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

pytest.importorskip("msgspec")

from sglang_subgw.config import GatewayConfig
from sglang_subgw.engine.routes import listener
from sglang_subgw.engine.routes.start import start_admin
from sglang_subgw.errors import ConfigError
from support.admin_fakes import SECONDS, GenerateReq, PauseReq, Running, client_of

ROUTES = (
    "/flush_cache",
    "/tm/flush=flush_cache:tm",
    "/pause-generation:tm",
    "/sessions/open=open_session:tm",
    "/abort_request:tm",
    "/generate",
    "/async_generate",
    "/request=generate_request:tm",
    "/weights=get_weights_by_name",
    "/profile=start_profile",
    "/partial",
    "/fail",
    "/wait_for_ever:tm",
    "/wait_in_thread",
)


@pytest.fixture
def running(runtime_dir: Path) -> Iterator[Running]:
    with Running(runtime_dir, *ROUTES) as running:
        yield running


@pytest.fixture
def client(running: Running) -> Iterator[httpx.Client]:
    with client_of(running.listener.url) as client:
        yield client


def events(response: httpx.Response) -> list[Any]:
    assert response.headers["content-type"].startswith("text/event-stream")
    lines = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line]
    return [line if line == "[DONE]" else json.loads(line) for line in lines]


def test_a_synchronous_method_of_the_engine_waits_for_the_manager_s_loop(client: httpx.Client) -> None:
    answer = {"success": True, "ids": [1, 2], "data": "AAE=", "color": "red"}
    for response in (client.post("/flush_cache"), client.get("/flush_cache"), client.post("/flush_cache", json={})):
        assert (response.status_code, response.json()) == (200, answer)
    assert client.post("/weights", json={"name": "a", "truncate_size": 3}).json() == ["a", 3]
    assert client.post("/profile", json={"output_dir": "/tmp"}).json() == {"output_dir": "/tmp"}


def test_a_method_of_the_manager_runs_on_its_loop(client: httpx.Client, running: Running) -> None:
    assert client.post("/tm/flush", json={"timeout_s": 2}).json()["success"]
    assert client.post("/pause-generation", json={"mode": "retract"}).json() is None
    assert client.post("/sessions/open", json={"capacity_of_str_len": 5, "session_id": "s"}).json() == "s"
    assert client.post("/abort_request", json={"rid": "a"}).json() is None
    names = [name for name, _ in running.engine.tokenizer_manager.calls]
    values = [value for _, value in running.engine.tokenizer_manager.calls]
    assert names == ["flush_cache", "pause_generation", "open_session", "abort_request"]
    assert values[:2] == [2.0, PauseReq(mode="retract")]
    assert values[3] == ("a", False)


def test_two_synchronous_methods_run_at_once(client: httpx.Client, running: Running) -> None:
    with ThreadPoolExecutor(1) as pool, client_of(running.listener.url) as other:
        waiting = pool.submit(other.get, "/wait_in_thread")
        assert running.engine.hung.wait(SECONDS)
        assert client.post("/flush_cache").status_code == 200
        running.engine.hang.set()
        assert waiting.result(SECONDS).status_code == 200


def test_a_stream_is_events(client: httpx.Client, running: Running) -> None:
    both = [{"text": "a"}, {"text": "ab"}, "[DONE]"]
    assert events(client.post("/generate", json={"prompt": "ab", "stream": True})) == both
    assert events(client.post("/async_generate", json={"prompt": "ab", "stream": True})) == both
    assert events(client.post("/request", json={"text": "ab", "stream": True})) == both
    assert events(client.post("/request", json={"image": "ab"})) == both


def test_without_stream_it_is_one_answer(client: httpx.Client, running: Running) -> None:
    assert client.post("/generate", json={"prompt": "ab"}).json() == {"text": "ab"}
    assert client.post("/async_generate", json={"prompt": "ab"}).json() == {"text": "a"}
    assert client.post("/request", json={"text": "ab"}).json() == {"text": "a"}
    assert running.engine.tokenizer_manager.calls[-1] == ("generate_request", GenerateReq(text="ab"))
    assert running.engine.tokenizer_manager.ended.wait(SECONDS)


def test_what_goes_wrong_in_a_stream_is_its_status_or_its_last_event(client: httpx.Client) -> None:
    response = client.post("/request", json={"stream": True})
    assert (response.status_code, response.json()["message"]) == (400, "text or input_ids is needed")
    first, error, done = events(client.post("/request", json={"text": "broken", "stream": True}))
    assert (first, done) == ({"text": "a"}, "[DONE]")
    assert (error["code"], error["message"]) == (400, "after a")


def test_a_client_that_leaves_ends_the_stream(client: httpx.Client, running: Running) -> None:
    ended = running.engine.tokenizer_manager.ended
    with client.stream("POST", "/request", json={"text": "endless", "stream": True}) as response:
        # The iterator's end is the connection's.
        lines = response.iter_lines()
        assert next(lines) == 'data: {"text":"a"}'
        assert not ended.is_set()
    assert ended.wait(SECONDS)


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "message"),
    [
        ("GET", "/flush_cach", None, 404, "There is no engine route /flush_cach. There is /flush_cache, /tm/flush,"),
        ("POST", "/_submit", None, 404, "There is no engine route /_submit."),
        ("GET", "/weights", None, 405, "GET is not allowed for /weights."),
        ("PUT", "/flush_cache", None, 405, "PUT is not allowed for /flush_cache."),
        ("HEAD", "/flush_cache", None, 405, ""),
        (
            "POST",
            "/flush_cache?timeout=3",
            None,
            400,
            "Arguments are given as a JSON object by POST, not in the query.",
        ),
        ("POST", "/weights", "{", 400, "The request body is not valid JSON"),
        ("POST", "/weights", "[1]", 400, "The request body must be a JSON object, not an array."),
        ("POST", "/weights", "{}", 400, "Field 'name' is required."),
        ("POST", "/weights", '{"name": "a", "method": "x"}', 400, "Unknown field 'method' of this method."),
        ("POST", "/weights", '{"name": 1}', 400, "Field 'name' is wrong: Expected `str`, got `int`."),
        ("POST", "/weights", f'{{"name": "{"a" * 20000}"}}', 413, "larger than this server takes (10000 bytes)"),
        ("POST", "/pause-generation", '{"mode": "x"}', 400, "Field 'mode' is wrong: Invalid enum value 'x'."),
        ("POST", "/fail", '{"kind": "ValueError", "text": "so not"}', 400, "so not"),
        ("POST", "/fail", '{"kind": "AssertionError"}', 400, "AssertionError"),
        ("POST", "/fail", '{"kind": "HTTPException"}', 409, "in the way"),
        ("POST", "/fail", '{"kind": "OSError", "text": "disk"}', 500, "Internal server error: disk"),
    ],
)
def test_what_is_wrong_is_answered_in_sglang_s_form(
    client: httpx.Client, running: Running, method: str, path: str, body: str | None, status: int, message: str
) -> None:
    response = client.request(method, path, content=body)
    assert response.status_code == status
    assert running.engine.tokenizer_manager.calls == []
    if status == 405:
        assert response.headers["allow"] in ("POST", "GET, POST")
    if method != "HEAD":
        error = response.json()
        assert message in error["message"]
        assert (error["object"], error["code"], error["type"]) == ("error", status, str(status))


def test_a_result_without_a_form_names_its_type(client: httpx.Client, running: Running) -> None:
    running.engine.partial_result = {"lock": threading.Lock()}
    response = client.get("/partial")
    assert (response.status_code, "type _thread.lock" in response.json()["message"]) == (500, True)


def test_the_routes_are_listed(client: httpx.Client) -> None:
    listed = {route["path"]: route for route in client.get("/").json()["engine_routes"]}
    assert list(listed) == [route.partition("=")[0].partition(":")[0] for route in ROUTES]
    assert listed["/weights"] == {
        "path": "/weights",
        "methods": ["POST"],
        "calls": "engine.get_weights_by_name",
        "parameters": {"name": "required", "truncate_size": "optional"},
    }
    assert listed["/sessions/open"]["parameters"]["capacity_of_str_len"] == "required"


def test_the_engine_s_death_is_told_to_those_who_wait(client: httpx.Client, running: Running) -> None:
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(client.get, "/wait_for_ever")
        assert running.engine.tokenizer_manager.began.wait(SECONDS)
        running.loop.fail("SGLang's scheduler was killed by signal 9")
        response = waiting.result(SECONDS)
    assert response.status_code == 503
    assert response.json()["message"] == "SGLang's scheduler was killed by signal 9"


def test_a_stop_waits_for_no_call_for_ever(running: Running, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(listener, "_LAST_SECONDS", 1)
    with ThreadPoolExecutor(2) as pool:
        with Running(tmp_path, "/wait_for_ever:tm", "/wait_in_thread") as other:
            clients = [client_of(other.listener.url) for _ in range(2)]
            calls = [
                pool.submit(client.get, path)
                for client, path in zip(clients, ("/wait_for_ever", "/wait_in_thread"), strict=True)
            ]
            assert other.engine.tokenizer_manager.began.wait(SECONDS)
            assert other.engine.hung.wait(SECONDS)
        assert not Path(other.listener.url.removeprefix("unix:")).exists()
        other.engine.hang.set()
        for call in calls:
            assert call.exception(SECONDS) is not None or call.result().status_code == 500
        for client in clients:
            client.close()


def test_the_socket_is_its_owner_s_alone_and_goes_with_the_listener(runtime_dir: Path) -> None:
    path = runtime_dir / "admin"
    for _ in range(2):
        with Running(runtime_dir, "/flush_cache") as running:
            assert running.listener.url == f"unix:{path}"
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            with pytest.raises(ConfigError, match=f"{path} is in use by a running server"):
                Running(runtime_dir, "/flush_cache", listen=f"unix:{path}").__enter__()
            with client_of(running.listener.url) as client:
                assert client.get("/flush_cache", headers={"host": "any"}).status_code == 200
        assert not path.exists()
        # What one that was killed leaves.
        with socket.socket(socket.AF_UNIX) as stale:
            stale.bind(os.fspath(path))
    path.unlink()


def test_a_port_is_the_machine_s_own_unless_asked_otherwise(
    runtime_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for listen in ("0", ":0", "localhost:0", "127.0.0.1:0"):
        with Running(runtime_dir, "/flush_cache", listen=listen) as running, client_of(running.listener.url) as client:
            assert running.listener.url.startswith(("http://127.0.0.1:", "http://[::1]:"))
            assert client.get("/flush_cache").status_code == 200
    assert caplog.text == ""
    with Running(runtime_dir, "/flush_cache", listen="0.0.0.0:0") as running:
        port = running.listener.url.rpartition(":")[2]
        assert httpx.get(f"http://127.0.0.1:{port}/flush_cache", headers={"host": "gpu-7"}).status_code == 200
    assert f"The admin listener is at http://0.0.0.0:{port}: whoever can reach it may call its routes" in caplog.text


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"sec-fetch-site": "cross-site"},
        {"host": "evil.example:9000"},
        {"host": "localhost.evil.example"},
        {"host": "[2001:db8::1]:9000"},
    ],
)
def test_web_pages_of_a_browser_on_the_machine_are_refused(runtime_dir: Path, headers: dict[str, str]) -> None:
    with Running(runtime_dir, "/flush_cache", listen="0") as running, client_of(running.listener.url) as client:
        response = client.post("/flush_cache", headers=headers)
        assert response.status_code == 403
        assert running.engine.tokenizer_manager.calls == []
        for host in ("localhost", "127.0.0.1:9000", "[::1]:9000"):
            assert client.post("/flush_cache", headers={"host": host}).status_code == 200


@pytest.mark.parametrize(
    ("listen", "message"),
    [
        ("nowhere", "--admin-listen 'nowhere' is no address. The form is unix:PATH or [HOST:]PORT."),
        ("127.0.0.1:70000", "'127.0.0.1:70000' is no address"),
        ("127.0.0.1:", "'127.0.0.1:' is no address"),
        ("no such host:1", "'no such host:1' can't be resolved"),
        ("192.0.2.1:0", "'192.0.2.1:0' can't be listened on"),
        ("unix:", "unix: has no path"),
        ("unix:/dev/null", "/dev/null exists and is not a socket"),
        ("unix:/nowhere/at/all", "The admin socket /nowhere/at/all can't be made: No such file or directory"),
    ],
)
def test_an_address_that_can_t_be_is_named(runtime_dir: Path, listen: str, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        Running(runtime_dir, "/flush_cache", listen=listen).__enter__()
    assert message in str(error.value)


def test_an_engine_of_another_process_has_no_routes(runtime_dir: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = GatewayConfig(engine_routes=["/flush_cache"])
    with pytest.raises(ConfigError, match="need the engine in their own process, and it is in another"):
        start_admin(config, object(), None, runtime_dir)
    assert start_admin(GatewayConfig(), object(), None, runtime_dir) is None
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []
