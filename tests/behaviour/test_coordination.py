"""What is changed through one shard holds for all: pauses, weights, adapters, sessions, by SGLang's own routes."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from sglang_subgw.config import Mode
from sglang_subgw.wire.zmtp.push import Push
from support.client import events, raw_request, read_until
from support.stack import Stack, generate_body, running_stack

PATIENCE = 45
"""Seconds for what takes one where nothing else runs."""
PLAIN = "abcabcabcabc"
"""What the weights that the engine started with make of it."""
LORA = {"features": {"enable_lora": True}}


def post(client: httpx.Client, path: str, body: Any = None, status: int = 200) -> Any:
    answer = client.post(path, json=body or {})
    assert answer.status_code == status, answer.text
    return answer.json() if answer.text and answer.text[0] in '{["' else answer.text


def text(client: httpx.Client, **fields: Any) -> str:
    """The answer's first tokens, which show the weights and the adapter that it came from."""
    return str(post(client, "/generate", generate_body("abc", 12) | fields)["text"])


def test_24445_a_pause_reaches_every_shard_and_any_shard_ends_it(make_stack: Callable[..., Stack]):
    stack = make_stack(shards=3)
    with stack.client_per_shard() as clients, stack.client_per_shard() as others, ThreadPoolExecutor(3) as pool:
        post(clients[0], "/pause_generation", {"mode": "in_place"})
        waiting = [pool.submit(text, other) for other in others]
        assert [client.get("/model_info").status_code for client in clients] == [200] * 3
        assert not any(one.done() for one in waiting)
        assert stack.engine.paused
        assert stack.engine.running() == 0
        post(clients[1], "/continue_generation")
        assert [one.result(PATIENCE) for one in waiting] == [PLAIN] * 3
    stack.check()


@pytest.mark.parametrize("mode_of_pause", ["abort", "in_place", "retract"])
def test_33696_many_pauses_and_continues_at_once_all_get_their_answers(
    make_stack: Callable[..., Stack], mode_of_pause: str
):
    stack = make_stack()
    with stack.client_per_shard() as clients, stack.client_per_shard() as others, ThreadPoolExecutor(4) as pool:
        all_four = [*clients, *others]
        pauses = [pool.submit(post, client, "/pause_generation", {"mode": mode_of_pause}) for client in all_four]
        assert [one.result(PATIENCE)["status"] for one in pauses] == ["ok"] * 4
        continues = [pool.submit(post, client, "/continue_generation") for client in all_four]
        assert [one.result(PATIENCE)["status"] for one in continues] == ["ok"] * 4
        assert [text(client) for client in clients] == [PLAIN] * 2
    stack.check()


def test_a_pause_is_done_when_it_is_answered_however_late_the_router_reads_its_shard(
    runtime_dir: Path, monkeypatch: pytest.MonkeyPatch
):
    send = Push.send

    def late(self: Push, frame: bytes) -> None:
        if threading.current_thread().name == "shard-1":
            self._loop.call_later(0.1, send, self, frame)
        else:
            send(self, frame)

    with running_stack(runtime_dir, Mode.THREAD) as stack, stack.client_per_shard() as (first, second):
        monkeypatch.setattr(Push, "send", late)
        for pausing, going_on in ((second, first), (first, second)):
            post(pausing, "/pause_generation", {"mode": "in_place"})
            assert stack.engine.paused
            post(going_on, "/continue_generation")
            assert not stack.engine.paused
        post(second, "/pause_generation", {"mode": "abort"})
        post(first, "/continue_generation")
        assert text(first) == PLAIN
        stack.check()


def test_a_pause_that_aborts_ends_what_every_shard_runs(make_stack: Callable[..., Stack]):
    stack = make_stack(step_seconds=0.005)
    with stack.client_per_shard() as clients, ThreadPoolExecutor(2) as pool:
        streams = [raw_request(stack.address, "/generate", generate_body("abc", 4000, stream=True)) for _ in range(4)]
        for stream in streams:
            read_until(stream, b"\n\n")
        pool.submit(post, clients[0], "/pause_generation").result(PATIENCE)
        assert stack.engine.running() == 0
        for stream in streams:
            assert b'"abort"' in read_until(stream, b"[DONE]")
            stream.close()
        post(clients[1], "/continue_generation")
        assert text(clients[1]) == PLAIN
    stack.check()


def test_39689_a_shard_that_starts_while_the_engine_is_paused_is_paused(make_stack: Callable[..., Stack]):
    stack = make_stack(shards=1)
    with stack.client() as first, ThreadPoolExecutor(2) as pool:
        post(first, "/pause_generation", {"mode": "in_place"})
        stack.gateway.resize(2)
        assert stack.wait_for(lambda: [shard["state"] for shard in stack.gateway.shards] == ["ready"] * 2, PATIENCE)
        with stack.client_per_shard() as clients, stack.client_per_shard() as others:
            waiting = [pool.submit(text, other) for other in others]
            assert [client.get("/model_info").status_code for client in clients] == [200] * 2
            assert not any(one.done() for one in waiting)
            assert stack.engine.running() == 0
            post(first, "/continue_generation")
            assert [one.result(PATIENCE) for one in waiting] == [PLAIN] * 2
    stack.check()


def test_an_unknown_mode_of_pause_is_refused(make_stack: Callable[..., Stack]):
    stack = make_stack()
    with stack.client() as client:
        assert "must be one of abort, retract, in_place" in str(post(client, "/pause_generation", {"mode": "x"}, 400))
        assert text(client) == PLAIN
    stack.check()


def test_39520_25319_a_weight_update_waits_for_every_shard_and_is_seen_by_each(
    make_stack: Callable[..., Stack], codec: str
):
    stack = make_stack(shards=3, step_seconds=0.002, codec=codec)
    with stack.client_per_shard() as clients, stack.client_per_shard() as others, ThreadPoolExecutor(4) as pool:
        stream = raw_request(stack.address, "/generate", generate_body("abc", 400, stream=True))
        read_until(stream, b"\n\n")
        update = {"model_path": "/weights/second", "weight_version": "v2"}
        with stack.engine.control.hold("UpdateWeightFromDiskReqInput"):
            updating = pool.submit(post, clients[0], "/update_weights_from_disk", update)
            assert stack.wait_for(lambda: bool(stack.engine.coordinator.state.get("held")), PATIENCE)
            later = [pool.submit(text, other) for other in others]
            whole = read_until(stream, b"[DONE]")
            assert [client.get("/model_info").status_code for client in clients[1:]] == [200] * 2
            assert not any(one.done() for one in later)
        stream.close()
        assert b"second" not in whole, "what ran when it was asked for ends with the old weights"
        answer = updating.result(PATIENCE)
        assert answer["success"], answer
        assert answer["message"].endswith("Weight version updated to v2.")
        assert {one.result(PATIENCE)[:8] for one in later} == {"[second]"}, "what comes later waits for the new ones"
        for client in clients:
            assert client.get("/model_info").json()["weight_version"] == "v2"
            assert client.get("/model_info").json()["model_path"] == "/weights/second"
            out = post(client, "/generate", generate_body("abc", 3))
            assert out["meta_info"]["weight_version"] == "v2"
        for client in clients:
            # Only the last chunk has the engine's own word for it.
            body = generate_body("abc", 3, stream=True)
            first, *rest = events(client.post("/generate", json=body))
            assert first["meta_info"]["finish_reason"] is None
            assert {chunk["meta_info"]["weight_version"] for chunk in (first, *rest)} == {"v2"}
    stack.check()


def test_two_updates_at_once_come_one_after_the_other(make_stack: Callable[..., Stack]):
    stack = make_stack()
    with stack.client_per_shard() as clients, stack.client_per_shard() as others, ThreadPoolExecutor(4) as pool:
        updates = [
            pool.submit(post, client, "/update_weights_from_disk", {"model_path": path, "weight_version": path})
            for client, path in zip([*clients, *others], [f"/weights/w{i}" for i in range(4)], strict=True)
        ]
        assert all(one.result(PATIENCE)["success"] for one in updates)
        texts = {text(client) for client in clients}
        versions = {client.get("/model_info").json()["weight_version"] for client in clients}
        assert len(texts) == len(versions) == 1
        assert texts.pop().startswith(f"[{versions.pop().rpartition('/')[2]}]")
    stack.check()


def test_a_failed_update_changes_nothing_and_lets_everybody_go_on(make_stack: Callable[..., Stack]):
    stack = make_stack()
    with stack.client_per_shard() as clients:
        answer = post(clients[0], "/update_weights_from_disk", {"model_path": "/missing/x", "weight_version": "v"}, 400)
        assert not answer["success"]
        assert "Failed to get weights iterator" in answer["message"]
        for wrong in ({"model_path": "/w", "load_format": "nonsense"}, {"model_path": ""}, {"model_path": 3}, {}):
            refused = post(clients[1], "/update_weights_from_disk", wrong, 400)
            assert ("load_format" if "load_format" in wrong else "model_path") in refused["message"]
        for client in clients:
            assert client.get("/model_info").json()["weight_version"] == "default"
            assert text(client) == PLAIN
    stack.check()


def test_a_shard_that_dies_while_it_changes_weights_does_not_keep_the_others_waiting(
    make_stack: Callable[..., Stack], mode: str
):
    if mode != "process":
        pytest.skip("only a shard in a process of its own can die alone")
    stack = make_stack(step_seconds=0.005)
    with stack.client_per_shard() as clients, ThreadPoolExecutor(2) as pool:
        index = int(clients[0].get("/model_info").headers["x-sglang-subgw-shard"])
        pid = next(shard["pid"] for shard in stack.gateway.shards if shard["index"] == index)
        # It runs on one shard, and the other waits for its end with all held.
        stream = clients[1].stream("POST", "/generate", json=generate_body("abc", 4000, stream=True))
        with stream as response:
            chunks = response.iter_bytes()
            next(chunks)
            updating = pool.submit(clients[0].post, "/update_weights_from_disk", json={"model_path": "/weights/w"})
            assert stack.wait_for(lambda: bool(stack.engine.coordinator.state.get("held")), PATIENCE)
            os.kill(pid, signal.SIGKILL)
            with pytest.raises(httpx.TransportError):
                updating.result(PATIENCE)
            assert stack.wait_for(lambda: not stack.engine.coordinator.state.get("held"), PATIENCE)
            assert stack.wait_for(lambda: [shard["state"] for shard in stack.gateway.shards] == ["ready"] * 2, PATIENCE)
        assert stack.generate("abc", 3)["text"] == "abc"
    stack.wait_idle()
    stack.check()


def test_31084_an_adapter_that_one_shard_loads_is_known_to_all_and_after_restarts(
    make_stack: Callable[..., Stack], codec: str
):
    stack = make_stack(shards=3, codec=codec, **LORA)
    with stack.client_per_shard() as clients:
        answer = post(clients[0], "/load_lora_adapter", {"lora_name": "poet", "lora_path": "/adapters/poet"})
        assert answer["success"], answer
        assert answer["loaded_adapters"] == {"poet": "/adapters/poet"}
        assert {text(client, lora_path="poet")[:6] for client in clients} == {"[poet]"}
        assert {text(client) for client in clients} == {PLAIN}
        models = [[card["id"] for card in client.get("/v1/models").json()["data"]] for client in clients]
        assert models == [["simulated-model", "poet"]] * 3
        again = post(clients[1], "/load_lora_adapter", {"lora_name": "poet", "lora_path": "/adapters/poet"}, 400)
        assert "poet" in again["error_message"]
    stack.gateway.restart_shards()
    assert stack.wait_for(lambda: [s["generation"] for s in stack.gateway.shards] == [2] * 3, PATIENCE)
    assert stack.wait_for(lambda: [s["state"] for s in stack.gateway.shards] == ["ready"] * 3, PATIENCE)
    with stack.client_per_shard() as clients:
        assert {text(client, lora_path="poet")[:6] for client in clients} == {"[poet]"}
        body = {"model": "simulated-model:poet", "prompt": "abc", "max_tokens": 12}
        assert post(clients[2], "/v1/completions", body)["choices"][0]["text"].startswith("[poet]")
        assert post(clients[2], "/unload_lora_adapter", {"lora_name": "poet"})["success"]
        models = [[card["id"] for card in client.get("/v1/models").json()["data"]] for client in clients]
        assert models == [["simulated-model"]] * 3
    stack.check()


def test_unloading_waits_for_the_requests_of_every_shard(make_stack: Callable[..., Stack]):
    stack = make_stack(step_seconds=0.002, **LORA)
    with stack.client_per_shard() as clients, ThreadPoolExecutor(2) as pool:
        post(clients[0], "/load_lora_adapter", {"lora_name": "poet", "lora_path": "/adapters/poet"})
        body = generate_body("abc", 400, stream=True) | {"lora_path": "poet"}
        with clients[1].stream("POST", "/generate", json=body) as response:
            chunks = response.iter_bytes()
            next(chunks)
            unloading = pool.submit(post, clients[0], "/unload_lora_adapter", {"lora_name": "poet"})
            assert stack.wait_for(lambda: not stack.engine.coordinator.state["adapters"], PATIENCE)
            assert not unloading.done()
            assert b"[DONE]" in b"".join(chunks)
        assert unloading.result(PATIENCE)["success"]
        assert "does not exist" in post(clients[1], "/unload_lora_adapter", {"lora_name": "poet"}, 400)["error_message"]
    stack.check()


def test_an_adapter_too_many_takes_the_place_of_the_one_that_was_used_longest_ago_on_any_shard(
    make_stack: Callable[..., Stack],
):
    stack = make_stack(features={"enable_lora": True, "max_loaded_loras": 2})
    with stack.client_per_shard() as clients:
        for name in ("a", "b"):
            assert post(clients[0], "/load_lora_adapter", {"lora_name": name, "lora_path": f"/adapters/{name}"})[
                "success"
            ]
        assert text(clients[0], lora_path="b").startswith("[b]")
        # The last use counts, wherever it was.
        assert text(clients[1], lora_path="a").startswith("[a]")
        answer = post(clients[1], "/load_lora_adapter", {"lora_name": "c", "lora_path": "/adapters/c"})
        assert sorted(answer["loaded_adapters"]) == ["a", "c"]
        # SGLang's rule: one that had to go comes back when it is asked for.
        assert text(clients[0], lora_path="b").startswith("[b]")
        assert "has never been loaded" in str(
            post(clients[0], "/generate", generate_body("a", 1) | {"lora_path": "z"}, 400)
        )
    stack.check()


def test_a_session_opened_through_one_shard_works_through_another(make_stack: Callable[..., Stack], codec: str):
    stack = make_stack(codec=codec)
    with stack.client_per_shard() as clients, stack.client_per_shard() as others, ThreadPoolExecutor(4) as pool:
        ids = [f"session-{i}" for i in range(4)]
        opened = [
            pool.submit(post, client, "/open_session", {"capacity_of_str_len": 1000, "session_id": name})
            for client, name in zip([*clients, *others], ids, strict=True)
        ]
        assert [one.result(PATIENCE) for one in opened] == ids
        for client in clients:
            assert text(client, session_params={"id": ids[0]}) == PLAIN
        assert "still open" in str(
            post(clients[1], "/open_session", {"capacity_of_str_len": 9, "session_id": ids[0]}, 400)
        )
        assert "does not exist" in str(
            post(clients[0], "/generate", generate_body("a", 1) | {"session_params": {"id": "x"}}, 400)
        )
        made = post(clients[0], "/open_session", {"capacity_of_str_len": 1000})
        assert len(made) == 32
        post(clients[1], "/close_session", {"session_id": made})
        answer = post(clients[0], "/generate", generate_body("a", 1) | {"session_params": {"id": made}}, 400)
        assert "does not exist" in str(answer)
    stack.check()


def test_memory_is_released_when_nothing_runs_and_requests_that_come_meanwhile_wait(make_stack: Callable[..., Stack]):
    stack = make_stack(step_seconds=0.002)
    with stack.client_per_shard() as clients, ThreadPoolExecutor(2) as pool:
        with clients[1].stream("POST", "/generate", json=generate_body("abc", 200, stream=True)) as response:
            chunks = response.iter_bytes()
            next(chunks)
            releasing = pool.submit(post, clients[0], "/release_memory_occupation", {"tags": ["kv_cache"]})
            assert b"[DONE]" in b"".join(chunks)
            releasing.result(PATIENCE)
        post(clients[1], "/resume_memory_occupation", {"tags": ["kv_cache"]})
        assert text(clients[0]) == PLAIN
    stack.check()
