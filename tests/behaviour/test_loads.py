"""The engine's load and a shard's identity: the same numbers whichever shard answers, in every mode."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from sglang_subgw.config import Mode
from support.stack import Stack, generate_body


def test_loads_are_the_engines_whichever_shard_answers(make_stack: Callable[..., Stack], mode: Mode) -> None:
    stack = make_stack(features={"num_dp_ranks": 3})
    stack.engine.set_faults(stall=True)
    with stack.client_per_shard() as clients, stack.client_per_shard() as others, ThreadPoolExecutor() as pool:
        bodies = [generate_body("abc", 2) | {"routed_dp_rank": rank} for rank in (0, 2)]
        running = [
            pool.submit(client.post, "/generate", json=body) for client, body in zip(others, bodies, strict=True)
        ]

        def waiting() -> list[list[int]]:
            """Requests that each shard says each rank has."""
            answers = [client.get("/v1/loads").json() for client in clients]
            assert all(answer["version"] == "0.5.23" and answer["num_accelerators"] == 1 for answer in answers)
            return [[load["num_waiting_reqs"] for load in answer["loads"]] for answer in answers]

        assert stack.wait_for(lambda: waiting() == [[1, 0, 1]] * 2), waiting()
        for client in clients:
            [one] = client.get("/v1/loads?dp_rank=2&include=queues").json()["loads"]
            assert (one["dp_rank"], one["queues"]["waiting"], "memory" in one) == (2, 1, False)
            gauges = client.get("/v1/loads?format=prometheus&include=core").text.splitlines()
            assert gauges.count("# TYPE sglang_num_waiting_reqs gauge") == 1
            assert [line for line in gauges if line.startswith("sglang_num_waiting_reqs")] == [
                'sglang_num_waiting_reqs{dp_rank="0"} 1',
                'sglang_num_waiting_reqs{dp_rank="1"} 0',
                'sglang_num_waiting_reqs{dp_rank="2"} 1',
            ]
            older = client.get("/get_load").json()
            assert [(load["dp_rank"], load["num_reqs"], load["num_tokens"]) for load in older] == [
                (0, 1, 3),
                (1, 0, 0),
                (2, 1, 3),
            ]
        stack.engine.set_faults(stall=False)
        assert [answer.result().status_code for answer in running] == [200, 200]
        assert stack.wait_for(lambda: waiting() == [[0, 0, 0]] * 2), waiting()
    stack.check()


def test_what_there_is_none_of(make_stack: Callable[..., Stack], mode: Mode) -> None:
    stack = make_stack(shards=1)
    with stack.client() as client:
        assert client.get("/v1/loads?dp_rank=1").json()["loads"] == []
        assert client.get("/v1/loads?dp_rank=-1").json()["loads"] == []
        refused = client.get("/v1/loads?include=core,weather")
        assert (refused.status_code, refused.json()["param"]) == (400, "include")
        assert "weather" in refused.json()["message"]
        refused = client.get("/v1/loads?dp_rank=x")
        assert (refused.status_code, refused.json()["param"]) == (400, "dp_rank")


def test_a_shards_identity_tells_engines_and_shards_apart(make_stack: Callable[..., Stack], mode: Mode) -> None:
    stack = make_stack(features={"num_dp_ranks": 2})
    with stack.client_per_shard() as clients:
        found = [client.get("/server_info").json()["sglang_subgw"] for client in clients]
    assert {one["engine_id"] for one in found} == {stack.engine.contract.engine_id}
    assert len({one["gateway_id"] for one in found}) == 1
    assert [one["shard"] for one in found] == [0, 1]
    assert [one["identity"] for one in found] == [
        f"{one['engine_id']}-{one['gateway_id']}-{one['shard']}" for one in found
    ]
    assert {(one["model"], one["dp_ranks"], one["mode"]) for one in found} == {("simulated-model", 2, str(mode))}
