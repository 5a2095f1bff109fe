"""Another number of shards while the gateway runs, and connections that spread over those that came."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import httpx
import pytest

from sglang_subgw.config import Accept
from sglang_subgw.errors import ConfigError
from support.client import SHARD_HEADER
from support.stack import Stack, echoed, generate_body


def states(stack: Stack) -> dict[int, str]:
    return {shard["index"]: shard["state"] for shard in stack.gateway.shards}


def ready(stack: Stack, count: int) -> bool:
    return states(stack) == dict.fromkeys(range(count), "ready")


def shard_of(client: httpx.Client) -> int:
    return int(client.get("/ping").headers[SHARD_HEADER])


@contextmanager
def load(stack: Stack, clients: int = 4) -> Iterator[list[str]]:
    """Kept-alive clients that send one request after the other; yields what went wrong."""
    failures: list[str] = []
    stop = threading.Event()

    def run() -> None:
        with stack.client() as client:
            while not stop.is_set():
                try:
                    answer = client.post("/generate", json=generate_body("abc", 2))
                except httpx.HTTPError as exc:
                    failures.append(repr(exc))
                    return
                if answer.status_code != 200 or answer.json()["text"] != "ab":
                    failures.append(f"{answer.status_code} {answer.text}")

    threads = [threading.Thread(target=run) for _ in range(clients)]
    for thread in threads:
        thread.start()
    try:
        yield failures
    finally:
        stop.set()
        for thread in threads:
            thread.join(30)


@pytest.mark.parametrize("accept", list(Accept))
def test_more_and_fewer_shards_under_load_with_no_failed_request(make_stack: Callable[..., Stack], accept):
    stack = make_stack(shards=2, step_seconds=0.005, config={"accept": accept})
    texts: list[str] = []

    def stream() -> None:
        texts.append(stack.stream("/generate", generate_body("xyz", 300))[-1]["text"])

    with load(stack) as failures:
        streams = [threading.Thread(target=stream) for _ in range(4)]
        for thread in streams:
            thread.start()
        stack.gateway.resize(4)
        assert stack.wait_for(lambda: ready(stack, 4), 20)
        stack.gateway.resize(1)
        assert stack.wait_for(lambda: ready(stack, 1), 30)
        stack.gateway.resize(2)
        assert stack.wait_for(lambda: ready(stack, 2), 20)
        for thread in streams:
            thread.join(30)
    assert failures == []
    assert texts == [echoed("xyz", 300)] * 4
    assert [shard["generation"] for shard in stack.gateway.shards] == [1, 2], "an index that comes again goes on"
    rids = [request.rid for request in stack.engine.requests()]
    assert len(rids) == len(set(rids))
    stack.wait_idle()
    stack.check()


def test_idle_connections_spread_over_a_new_shard(make_stack: Callable[..., Stack]):
    stack = make_stack(shards=1)
    with ExitStack() as ends:
        clients = [ends.enter_context(stack.client()) for _ in range(12)]
        assert {shard_of(client) for client in clients} == {0}
        stack.gateway.resize(3)
        assert stack.wait_for(lambda: ready(stack, 3) and min(s["connections"] for s in stack.gateway.shards) >= 3, 20)
        shards = [shard_of(client) for client in clients]
        assert min(shards.count(index) for index in range(3)) >= 3


def test_connections_are_even_again_after_a_rolling_restart(make_stack: Callable[..., Stack]):
    stack = make_stack(shards=2)
    with ExitStack() as ends:
        clients = [ends.enter_context(stack.client()) for _ in range(10)]
        assert sorted(shard_of(client) for client in clients) == [0] * 5 + [1] * 5
        stack.gateway.restart_shards()
        assert stack.wait_for(
            lambda: (
                all(shard["generation"] == 2 and shard["connections"] >= 4 for shard in stack.gateway.shards)
                and ready(stack, 2)
            ),
            30,
        )
        shards = [shard_of(client) for client in clients]
        assert sorted((shards.count(0), shards.count(1))) in ([4, 6], [5, 5])


def test_a_number_that_can_not_be_is_refused_and_changes_nothing(make_stack: Callable[..., Stack]):
    stack = make_stack(shards=1)
    for wrong in (0, 257):
        with pytest.raises(ConfigError, match=f"shards must be from 1 to 256, not {wrong}"):
            stack.gateway.resize(wrong)
    assert ready(stack, 1)


def test_server_info_and_doctor_tell_the_number_there_is(make_stack: Callable[..., Stack]):
    stack = make_stack(shards=1)
    stack.gateway.resize(2)
    assert stack.wait_for(lambda: ready(stack, 2), 20)
    with stack.client() as client:
        info = client.get("/server_info").json()["sglang_subgw"]
        assert client.get("/").json()["shards"] == 2
    assert info["shard_count"] == 2
    assert [(shard["index"], shard["state"]) for shard in info["shards"]] == [(0, "ready"), (1, "ready")]
