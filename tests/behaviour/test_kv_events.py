"""KV cache events over the simulated engine: subscribed to once, the same in every shard, in every mode."""

from __future__ import annotations

from collections.abc import Callable

from sglang_subgw.config import Mode
from support.stack import Stack, generate_body

KV_EVENTS = {"publisher": "zmq", "replay_endpoint": "tcp://*:1"}
APP = {"app": "support.apps.kv:factory"}


def test_every_shard_reads_what_the_engine_publishes(make_stack: Callable[..., Stack], mode: Mode) -> None:
    stack = make_stack(config=APP, kv_events=KV_EVENTS, features={"num_dp_ranks": 2})
    publisher = stack.engine.publications.kv_events
    assert publisher is not None
    with stack.client_per_shard() as clients:
        found = [client.post("/follow").json() for client in clients]
        assert len({one["identity"] for one in found}) == 2
        assert {one["model"] for one in found} == {"simulated-model"}
        for rank, client in enumerate(clients):
            body = generate_body("x" * 20, 2) | {"routed_dp_rank": rank}
            client.post("/generate", json=body).raise_for_status()
        stack.wait_idle()
        clients[0].post("/flush_cache").raise_for_status()
        read = [client.get("/events?count=3").json() for client in clients]
        for events in read:
            [stored] = [event for batch in events for event in batch["events"] if event["type"] == "BlockStored"]
            assert (len(stored["token_ids"]), stored["block_size"], len(stored["block_hashes"])) == (16, 16, 1)
            cleared = [batch for batch in events if batch["events"] == [{"type": "AllBlocksCleared"}]]
            assert sorted(batch["dp_rank"] for batch in cleared) == [0, 1]
        assert sorted(map(str, read[0])) == sorted(map(str, read[1]))
        assert clients[1].get("/blocking").json() == {"dp_rank": 0, "number": 0, "events": [stored]}
    assert publisher.subscriptions == 2, "one for each rank, however many shards read"
    stack.check()


def test_an_engine_that_publishes_none_says_why(make_stack: Callable[..., Stack], mode: Mode) -> None:
    stack = make_stack(shards=1, config=APP)
    refused = stack.post("/follow", {})
    assert refused.status_code == 400
    assert refused.json()["message"] == (
        "This engine publishes no KV events: it was started without --kv-events-config."
    )
