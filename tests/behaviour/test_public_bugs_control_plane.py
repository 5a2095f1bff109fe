"""One test for each public report on the control plane that routing's file doesn't have, named after it."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sglang_subgw.errors import EngineDied
from support.client import raw_request, read_until
from support.stack import Stack, generate_body
from support.worker import PlainWorker

JUNK = (b"", b"\0", b"\x80\x05garbage", b"\x93\xc1", b"\xff" * 300)


def messages_heard(stack: Stack) -> list[int]:
    return [shard["messages"] for shard in stack.gateway.shards]


def refused_everywhere(stack: Stack, requests: Iterable[tuple[str, dict[str, Any], int, str]]) -> None:
    """On every shard, whole and, where the route has streams, before the stream has begun."""
    with stack.client_per_shard() as clients:
        for client, (path, body, status, said) in itertools.product(clients, list(requests)):
            for more in ({}, {"stream": True}):
                answer = client.post(path, json=body | more)
                assert answer.status_code == status, answer.text
                assert answer.headers["content-type"].startswith("application/json")
                assert said in answer.text


def test_39520_25319_an_update_by_another_worker_is_seen_on_every_shard_once_it_is_answered(
    make_stack: Callable[..., Stack], codec: str
):
    stack = make_stack(shards=3, codec=codec)
    with PlainWorker(stack.engine.contract) as other, stack.client_per_shard() as clients:
        other.send(
            "UpdateWeightFromDiskReqInput",
            http_worker_ipc=other.endpoint,
            model_path="/elsewhere",
            load_format="auto",
            weight_version="the new one",
        )
        assert other.receive().success
        for client in clients:
            out = client.post("/generate", json=generate_body("abc", 3)).json()
            assert out["meta_info"]["weight_version"] == "the new one"
    stack.check()


def test_39520_25319_an_answer_that_nobody_asked_for_is_no_answer_to_anyone(
    make_stack: Callable[..., Stack], codec: str
):
    stack = make_stack(codec=codec, step_seconds=0.01)
    with stack.client_per_shard() as clients:
        heard = messages_heard(stack)
        for worker in stack.engine.registered:
            stack.engine.send_message(worker, "UpdateWeightFromDiskReqOutput", success=True, message="")
            stack.engine.send_message(worker, "LoRAUpdateOutput", success=True)
            stack.engine.send_message(worker, "FlushCacheReqOutput", success=True)
        assert stack.wait_for(lambda: messages_heard(stack) == [count + 3 for count in heard])
        long = raw_request(stack.address, "/generate", generate_body("abc", 4000, stream=True))
        read_until(long, b"\n\n")
        for client in clients:
            assert client.post("/flush_cache").status_code == 400, "the engine is busy: another's success isn't its own"
        long.close()
    stack.wait_idle()
    stack.check()


ADAPTER_REQUESTS: dict[str, tuple[str, dict[str, Any]]] = {
    "generate": ("/generate", generate_body("abc", 2) | {"lora_path": "poet"}),
    "generate, one of a batch": ("/generate", generate_body(["abc", "xyz"], 2) | {"lora_path": [None, "poet"]}),
    "completions, lora_path": ("/v1/completions", {"model": "simulated-model", "prompt": "a", "lora_path": "poet"}),
    "completions, model": ("/v1/completions", {"model": "simulated-model:poet", "prompt": "a"}),
    "chat, lora_path": (
        "/v1/chat/completions",
        {"model": "simulated-model", "messages": [{"role": "user", "content": "a"}], "lora_path": "poet"},
    ),
    "chat, model": (
        "/v1/chat/completions",
        {"model": "simulated-model:poet", "messages": [{"role": "user", "content": "a"}]},
    ),
    "completions, default model": ("/v1/completions", {"model": "default:poet", "prompt": "a"}),
}


def test_31084_31724_36487_30913_an_adapter_is_refused_by_its_name_where_lora_is_off(served: Stack):
    refused_everywhere(
        served,
        [
            (path, body, 404 if ":poet" in body.get("model", "") else 400, "poet'")
            for path, body in ADAPTER_REQUESTS.values()
        ],
    )


def test_31084_31724_36487_30913_an_adapter_is_refused_by_its_name_until_every_shard_knows_every_adapter(
    make_stack: Callable[..., Stack],
):
    """The engine has LoRA on."""
    stack = make_stack(features={"enable_lora": True})
    refused_everywhere(
        stack, [(path, body, 400, "never been loaded: poet") for path, body in ADAPTER_REQUESTS.values()]
    )
    assert [request.lora_id for request in stack.engine.requests()] == [None] * len(stack.engine.requests())
    assert stack.generate("abc", 3)["text"] == "abc"
    stack.check()


def test_public_bugs_14_an_undecodable_frame_to_a_shard_is_counted_and_dropped(
    make_stack: Callable[..., Stack], codec: str
):
    stack = make_stack(codec=codec)
    with stack.client_per_shard() as clients:
        stream = raw_request(stack.address, "/generate", generate_body("abc", 1000, stream=True))
        read_until(stream, b"\n\n")
        for worker in stack.engine.registered:
            for frame in JUNK:
                stack.engine.send_frame(worker, frame)
        assert stack.wait_for(lambda: [shard["undecodable"] for shard in stack.gateway.shards] == [len(JUNK)] * 2)
        read_until(stream, b"[DONE]")
        stream.close()
        for client in clients:
            assert client.post("/generate", json=generate_body("abc", 3)).json()["text"] == "abc"
            shards = client.get("/server_info").json()["sglang_subgw"]["shards"]
            assert [shard["undecodable"] for shard in shards] == [len(JUNK)] * 2
    stack.check()


SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text(st.characters(), max_size=8)
    | st.sampled_from(["\ud800", "\0", "1e999", "{}", "abc"])
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
)


def _names(path: str) -> list[str]:
    from sglang_subgw.http.native import generate_fields
    from sglang_subgw.http.openai import protocol

    tables = {"/generate": generate_fields.FIELDS, "/v1/completions": protocol.COMPLETION}
    return [name for name, field in tables.get(path, protocol.CHAT).fields.items() if not field.refusal]


_SAMPLING = [
    "temperature", "top_p", "top_k", "min_p", "stop", "stop_token_ids", "stop_regex", "logit_bias", "n", "seed",
    "max_new_tokens", "min_new_tokens", "json_schema", "custom_params", "frequency_penalty", "sampling_seed",
]  # fmt: skip
BODIES = {
    "/generate": {"text": "abc", "sampling_params": {"max_new_tokens": 1}},
    "/v1/completions": {"model": "simulated-model", "prompt": "abc", "max_tokens": 1},
    "/v1/chat/completions": {
        "model": "simulated-model",
        "messages": [{"role": "user", "content": "a"}],
        "max_tokens": 1,
    },
}


@pytest.mark.parametrize("path", BODIES)
def test_public_bugs_14_whatever_a_client_sends_a_shard_sends_nothing_that_the_router_dies_of(served: Stack, path: str):
    """The one open end of the router's loop is what it reads: frames that don't decode are never sent."""
    seen: set[int] = set()
    with served.client() as client:

        @settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
        @given(
            fields=st.dictionaries(st.sampled_from(_names(path)), VALUES, min_size=1, max_size=2),
            sampling=st.dictionaries(st.sampled_from(_SAMPLING), VALUES, max_size=2),
        )
        def send(fields: dict[str, Any], sampling: dict[str, Any]) -> None:
            body = {**BODIES[path], **fields}
            # Requests that may run for long say nothing about frames.
            for name in ("max_tokens", "max_completion_tokens"):
                if name in body:
                    body[name] = 1
            if path == "/generate":
                body["sampling_params"] = {"max_new_tokens": 1, **sampling}
            answer = client.post(path, content=json.dumps(body), headers={"content-type": "application/json"})
            seen.add(answer.status_code)
            assert answer.status_code < 500 or "queue" in answer.text, answer.text
            assert served.engine.router_alive()
            assert served.engine.violations == []

        send()
    assert seen, "nothing was sent"


def test_public_bugs_14_a_dead_router_ends_every_request_and_the_gateway_with_its_name(
    make_stack: Callable[..., Stack],
):
    """What SGLang itself does is hang: the handler for its dead relay loop raises, and nothing exits."""
    reason = "SGLang's router ended: DecodeError('Input data was truncated')"
    stack = make_stack(step_seconds=0.01)
    address = stack.address
    stream = raw_request(address, "/generate", generate_body("abc", 4000, stream=True))
    read_until(stream, b"\n\n")
    stack.engine.crash(reason)
    assert b"SGLang's router ended" in read_until(stream, b"[DONE]")
    stream.close()
    assert stack.gateway.wait(10)
    assert stack.gateway.failure == reason
    with pytest.raises(EngineDied, match="SGLang's router ended: DecodeError"):
        stack.gateway.raise_failure()
    with pytest.raises(ConnectionRefusedError):
        raw_request(address, "/generate", generate_body("abc", 1))
