"""One test for each public report on the routing of outputs and the control plane, named after it."""

from __future__ import annotations

import asyncio
import json
import operator
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from support.client import async_client, raw_request, read_until
from support.stack import Stack, echoed, generate_body
from support.worker import PlainWorker


async def post_all(stack: Stack, bodies: list[dict]) -> list[tuple[int, str]]:
    async with async_client(stack.address) as client:
        responses = await asyncio.gather(*(client.post("/generate", json=body) for body in bodies))
    return [(response.status_code, response.text) for response in responses]


def messages_heard(stack: Stack) -> list[int]:
    """How many messages each shard has handled."""
    return [shard["messages"] for shard in stack.gateway.shards]


def test_33858_33940_a_queue_full_abort_ends_its_request(make_stack: Callable[..., Stack]):
    stack = make_stack(max_running=1, max_queued=1, step_seconds=0.01)
    answers = asyncio.run(post_all(stack, [generate_body("abc", 20) for _ in range(12)]))
    statuses = [status for status, _ in answers]
    assert set(statuses) == {200, 503}
    assert all("The request queue is full." in text for status, text in answers if status == 503)
    stack.wait_idle()
    stack.check()


def test_33858_a_queue_full_abort_ends_a_stream(make_stack: Callable[..., Stack]):
    stack = make_stack(max_running=1, max_queued=1, step_seconds=0.01)
    answers = asyncio.run(post_all(stack, [generate_body("abc", 20, stream=True) for _ in range(12)]))
    full = [text for _, text in answers if "The request queue is full." in text]
    assert 0 < len(full) < 12
    assert all("[DONE]" in text for status, text in answers if status == 200)
    stack.wait_idle()
    stack.check()


@pytest.mark.parametrize("body", [generate_body(["abc", "xyz"], 4), generate_body("abc", 4, n=2)], ids=["batch", "n"])
def test_26831_the_first_request_is_a_batch(make_stack: Callable[..., Stack], body):
    stack = make_stack()
    with stack.client_per_shard() as clients:
        for client in clients:
            assert len(client.post("/generate", json=body).json()) == 2
            assert client.get("/health").status_code == 200
    stack.check()


def test_22766_an_unknown_session_is_a_400(make_stack: Callable[..., Stack]):
    stack = make_stack()
    response = stack.post("/generate", generate_body("abc", 4, session_params={"id": "nowhere"}))
    assert response.status_code == 400
    assert "session id nowhere does not exist" in response.text
    stack.check()


def test_28142_28143_health_of_all_shards_at_one_instant(make_stack: Callable[..., Stack]):
    stack = make_stack(shards=8)
    with stack.client_per_shard() as clients, ThreadPoolExecutor(8) as pool:
        for _ in range(5):
            assert {r.status_code for r in pool.map(lambda client: client.get("/health_generate"), clients)} == {200}
    rids = [request.rid for request in stack.engine.requests()]
    assert len(rids) == len(set(rids)) >= 8
    # No clock is in them, which several can read at one instant.
    own = re.compile(rf"HEALTH_CHECK_{stack.gateway.contract.gateway_id}([0-9a-f]{{3}})[0-9a-f]{{17}}")
    found = [own.fullmatch(rid) for rid in rids]
    assert all(found), rids
    assert {match[1] for match in found if match} == {f"{shard:03x}" for shard in range(8)}
    stack.check()


def test_28142_rids_carry_the_shard_and_a_counter(make_stack: Callable[..., Stack]):
    stack = make_stack(shards=2)
    with stack.client_per_shard() as clients:
        for client in clients:
            client.post("/generate", json=generate_body(["a", "b", "c"], 1))
    gateway_id = stack.gateway.contract.gateway_id
    rids = [r.rid for r in stack.engine.requests() if not r.rid.startswith("HEALTH_CHECK")]
    assert all(re.fullmatch(rf"{gateway_id}[0-9a-f]{{20}}", rid) for rid in rids)
    assert {rid[12:15] for rid in rids} == {"000", "001"}


def test_39461_an_abort_does_not_reach_rids_it_is_a_prefix_of(make_stack: Callable[..., Stack]):
    stack = make_stack(step_seconds=0.005)
    longer = raw_request(stack.address, "/generate", generate_body("long", 200, rid="abcd"))
    shorter = raw_request(stack.address, "/generate", generate_body("short", 4000, rid="abc"))
    assert stack.engine.wait_for(lambda: stack.engine.running() == 2)
    assert stack.post("/abort_request", {"rid": "abc"}).status_code == 200
    answer = read_until(longer, b"}}")
    assert b'"length"' in answer
    assert b'"id":"abcd"' in answer.replace(b'": "', b'":"')
    assert b'"abort"' in read_until(shorter, b"}}")
    longer.close()
    shorter.close()
    assert len(stack.engine.aborted) == 1
    stack.check()


def test_39461_aborting_one_of_a_batch_of_12_leaves_the_other_11(make_stack: Callable[..., Stack]):
    stack = make_stack(step_seconds=0.01)
    sock = raw_request(stack.address, "/generate", generate_body([f"<{i:02d}>" for i in range(12)], 60, rid="x"))
    assert stack.engine.wait_for(lambda: stack.engine.running() == 12)
    assert stack.post("/abort_request", {"rid": "x_1"}).status_code == 200
    head = read_until(sock, b"\r\n\r\n")
    length = int(re.search(rb"content-length: (\d+)", head.lower())[1])
    body = head.partition(b"\r\n\r\n")[2]
    while len(body) < length:
        body += sock.recv(65536)
    sock.close()
    outs = json.loads(body)
    kinds = [out["meta_info"]["finish_reason"]["type"] for out in outs]
    assert kinds == ["length", "abort"] + ["length"] * 10
    assert [out["meta_info"]["id"] for out in outs] == [f"x_{i}" for i in range(12)]
    assert [outs[i]["text"] for i in (0, 11)] == [echoed("<00>", 60), echoed("<11>", 60)]
    stack.check()


@pytest.mark.parametrize("grouped", [True, False], ids=["grouped", "single"])
def test_34627_17005_25055_logprobs_beside_requests_without_them(make_stack: Callable[..., Stack], grouped, codec):
    stack = make_stack(shards=2, grouped=grouped, codec=codec, step_seconds=0.003)
    bodies = [
        generate_body(f"<{i:02d}>", 12, return_logprob=i % 3 == 0, top_logprobs_num=i % 2, logprob_start_len=i % 4)
        for i in range(24)
    ]
    outs = [json.loads(text) for status, text in asyncio.run(post_all(stack, bodies)) if status == 200]
    assert len(outs) == 24
    for i, out in enumerate(outs):
        meta = out["meta_info"]
        assert ("output_token_logprobs" in meta) is (i % 3 == 0)
        if i % 3 == 0:
            assert [row[1] for row in meta["output_token_logprobs"]] == out["output_ids"]
            assert len(meta["input_token_logprobs"]) == 4 - i % 4
            if i % 2:
                assert len(meta["output_top_logprobs"]) == 12
    stack.check()


def test_21235_24445_24461_24462_a_pause_reaches_every_shard(make_stack: Callable[..., Stack]):
    stack = make_stack(shards=3)
    with (
        PlainWorker(stack.engine.contract) as other,
        stack.client_per_shard() as clients,
        ThreadPoolExecutor(3) as pool,
    ):
        heard = messages_heard(stack)
        other.send("PauseGenerationReqInput", http_worker_ipc=other.endpoint, mode="in_place")
        assert stack.wait_for(lambda: all(map(operator.gt, messages_heard(stack), heard)))
        before = len(stack.engine.requests())
        answers = [pool.submit(client.post, "/generate", json=generate_body("abc", 3)) for client in clients]
        stack.engine.wait_for(lambda: False, timeout=0.2)
        assert not any(answer.done() for answer in answers)
        assert len(stack.engine.requests()) == before, "a shard sent a request while it was paused"
        other.send("ContinueGenerationReqInput", http_worker_ipc=other.endpoint)
        assert [answer.result(5).json()["text"] for answer in answers] == ["abc"] * 3
    stack.check()


def test_pauses_of_two_workers_that_nobody_knows_end_with_their_continues(make_stack: Callable[..., Stack]):
    stack = make_stack(shards=2)
    with PlainWorker(stack.engine.contract, "one") as one, PlainWorker(stack.engine.contract, "two") as two:
        for worker in (one, two):
            worker.send("PauseGenerationReqInput", http_worker_ipc=worker.endpoint, mode="in_place")
        for worker in (two, one):
            worker.send("ContinueGenerationReqInput", http_worker_ipc=worker.endpoint)
        assert stack.generate("abc", 3)["text"] == "abc"
    stack.check()


def test_every_shard_is_registered_before_its_gateway_is_ready(make_stack: Callable[..., Stack]):
    stack = make_stack(shards=4)
    assert len(set(stack.engine.registered)) == 4


def test_39689_39693_a_shard_that_is_starting_hears_a_pause(make_stack: Callable[..., Stack]):
    """It has registered, and its application takes seconds to start: nothing but the broadcast tells it."""
    stack = make_stack(shards=1, config={"app": "support.apps.slow:app"})
    with PlainWorker(stack.engine.contract) as other, ThreadPoolExecutor(2) as pool:
        stack.gateway.resize(2)
        assert stack.wait_for(lambda: len(stack.engine.registered) == 2, 20)
        other.send("PauseGenerationReqInput", http_worker_ipc=other.endpoint, mode="in_place")
        assert stack.engine.wait_for(lambda: stack.engine.paused)
        assert [shard["state"] for shard in stack.gateway.shards] == ["ready", "starting"]
        assert stack.wait_for(lambda: [shard["state"] for shard in stack.gateway.shards] == ["ready"] * 2, 20)
        with stack.client_per_shard() as clients, stack.client_per_shard() as others:
            before = len(stack.engine.requests())
            answers = [pool.submit(one.post, "/generate", json=generate_body("abc", 3)) for one in others]
            for _ in range(2):
                # Through the engine and back: what was sent before has arrived there.
                assert [client.get("/server_info").status_code for client in clients] == [200] * 2
            assert not any(answer.done() for answer in answers)
            assert len(stack.engine.requests()) == before, "a shard sent a request while it was paused"
            other.send("ContinueGenerationReqInput", http_worker_ipc=other.endpoint)
            assert [answer.result(5).json()["text"] for answer in answers] == ["abc"] * 2
    stack.check()


def test_5525_n_samples_have_indices_and_one_usage(make_stack: Callable[..., Stack]):
    stack = make_stack()
    body = {"model": "simulated-model", "prompt": "abc", "max_tokens": 4, "n": 4}
    chunks = stack.stream("/v1/completions", {**body, "stream_options": {"include_usage": True}})
    texts = dict.fromkeys(range(4), "")
    for chunk in chunks:
        for choice in chunk["choices"]:
            texts[choice["index"]] += choice["text"]
    assert texts == dict.fromkeys(range(4), "abca")
    assert [chunk["usage"] for chunk in chunks if chunk.get("usage")][-1]["prompt_tokens"] == 3
    assert chunks[-1]["usage"]["completion_tokens"] == 16


@pytest.mark.parametrize("character", ["é", "한", "😀"])
def test_12630_12688_no_split_of_a_character_is_shown(make_stack: Callable[..., Stack], character):
    """The simulated model emits single bytes, so that every split point of every character is met."""
    stack = make_stack()
    prompt = list(("x" + character * 3).encode())
    chunks = stack.stream("/generate", generate_body(None, len(prompt), input_ids=prompt))
    assert chunks[-1]["text"] == "x" + character * 3
    assert not any("\ufffd" in chunk["text"] for chunk in chunks)
