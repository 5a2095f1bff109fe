"""Data-parallel ranks and disaggregation in every mode: all ranks answer, wrong fields are refused, rooms used once."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from sglang_subgw.config import Mode
from support.stack import Stack, generate_body

MEET: dict[str, Any] = {"bootstrap_host": "10.0.0.1", "bootstrap_port": 8998}


def test_every_rank_answers_every_shard(make_stack: Callable[..., Stack], mode: Mode) -> None:
    stack = make_stack(features={"num_dp_ranks": 3})
    with stack.client_per_shard() as clients, ThreadPoolExecutor(len(clients)) as pool:

        def ask(client: Any) -> list[int]:
            return [len(client.get("/server_info").json()["internal_states"]) for _ in range(10)]

        assert list(pool.map(ask, clients)) == [[3] * 10] * 2
    stack.check()


def test_a_rank_is_chosen_or_refused(make_stack: Callable[..., Stack], mode: Mode) -> None:
    stack = make_stack(shards=1, features={"num_dp_ranks": 3})
    body = generate_body("abc", 1)
    with stack.client() as client:
        for given, rank in (({"routed_dp_rank": 2}, 2), ({"data_parallel_rank": 1}, 1), ({}, None)):
            client.post("/generate", json={**body, **given}).raise_for_status()
            assert stack.engine.requests()[-1].routed_dp_rank == rank
        for wrong in (3, -1):
            refused = client.post("/generate", json={**body, "routed_dp_rank": wrong})
            assert (refused.status_code, refused.json()["error"]["message"]) == (
                400,
                f"routed_dp_rank={wrong} out of range [0, 3)",
            )
        refused = client.post("/generate", json={**body, "disagg_prefill_dp_rank": -1})
        assert refused.status_code == 400
        assert "disagg_prefill_dp_rank" in refused.json()["error"]["message"]
    stack.wait_idle()
    stack.check()


def test_a_bootstrap_room_is_used_once_whichever_shard(make_stack: Callable[..., Stack], mode: Mode) -> None:
    stack = make_stack(features={"disaggregation_mode": "decode", "disaggregation_transfer_backend": "mooncake"})
    body = {**generate_body("abc", 2), **MEET, "bootstrap_room": 77}
    stack.engine.set_faults(stall=True)
    with stack.client_per_shard() as clients, stack.client() as runner, ThreadPoolExecutor(1) as pool:
        running = pool.submit(runner.post, "/generate", json=body)
        assert stack.engine.wait_for(lambda: stack.engine.running() == 1)
        for client in clients:
            refused = client.post("/generate", json=body)
            assert refused.status_code == 400
            assert refused.json()["error"]["message"] == "bootstrap_room 77 is in use by a request that still runs."
        stack.engine.set_faults(stall=False)
        assert running.result().status_code == 200
        for client in clients:
            assert client.post("/generate", json=body).status_code == 200
        for wrong in ({"bootstrap_host": None}, {"bootstrap_room": 0}, {"bootstrap_port": 70000}):
            assert clients[0].post("/generate", json={**body, **wrong}).status_code == 400
        assert clients[0].get("/health_generate").status_code == 200
    stack.wait_idle()
    stack.check()
