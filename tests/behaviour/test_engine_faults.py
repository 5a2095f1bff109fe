"""What shards do when the engine misbehaves, stalls or dies."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from sglang_subgw.config import GatewayConfig, Mode
from sglang_subgw.errors import EngineDied
from sglang_subgw.gateway import ShardGateway
from sglang_subgw.simulated import SimulatedEngineProcess
from support.client import client, raw_request, read_until
from support.stack import Stack, generate_body


def test_a_frame_that_cannot_be_read_is_dropped(make_stack: Callable[..., Stack], codec):
    stack = make_stack(codec=codec)
    for worker in stack.engine.registered:
        for frame in (b"", b"\0", b"\x80\x05garbage", b"\x93\xc1", os.urandom(64)):
            stack.engine.send_frame(worker, frame)
    with stack.client_per_shard() as clients:
        for one in clients:
            assert one.post("/generate", json=generate_body("abc", 3)).json()["text"] == "abc"
    stack.check()


def test_messages_of_other_kinds_are_ignored(make_stack: Callable[..., Stack], codec):
    stack = make_stack(codec=codec)
    for worker in stack.engine.registered:
        stack.engine.send_message(worker, "ShutdownReq")
        stack.engine.send_message(worker, "ActiveRanksOutput", status=[True])
        stack.engine.send_message(worker, "AbortReq", rid="nobody")
    assert stack.generate("abc", 3)["text"] == "abc"
    stack.check()


def test_an_output_for_an_unknown_rid_is_ignored(make_stack: Callable[..., Stack], codec):
    stack = make_stack(codec=codec)
    with stack.client_per_shard() as clients:
        for worker in stack.engine.registered:
            stack.engine.send_unknown_rid(worker)
        for one in clients:
            assert one.post("/generate", json=generate_body("abc", 3)).json()["text"] == "abc"
    assert sum(shard["unknown_rids"] for shard in stack.gateway.shards) >= 2
    stack.check()


def test_a_silent_router_makes_health_fail(make_stack: Callable[..., Stack]):
    stack = make_stack(config={"health_timeout_seconds": 0.3})
    stack.engine.set_faults(router_silent=True)
    with stack.client() as one:
        assert one.get("/health").status_code == 503
        assert one.get("/ping").status_code == 200


def test_a_crash_of_the_engine_ends_everything_with_an_error(make_stack: Callable[..., Stack]):
    stack = make_stack(step_seconds=0.01)
    plain = raw_request(stack.address, "/generate", generate_body("abc", 4000))
    stream = raw_request(stack.address, "/generate", generate_body("abc", 4000, stream=True))
    read_until(stream, b"\n\n")
    assert stack.engine.wait_for(lambda: stack.engine.running() == 2)
    stack.engine.crash("simulated crash")
    assert b" 503 " in read_until(plain, b"\r\n")
    assert b"simulated crash" in read_until(stream, b"simulated crash")
    plain.close()
    stream.close()
    assert stack.gateway.wait(10)
    assert "simulated crash" in stack.gateway.failure


def test_a_killed_engine_process_is_noticed(runtime_dir: Path, mode: Mode):
    config = GatewayConfig(shards=2, mode=mode, port=0, log_level="error")
    with (
        SimulatedEngineProcess(runtime_dir, "--step-seconds", "0.01") as engine,
        ShardGateway(engine, config) as gateway,
    ):
        with client(gateway.address) as one:
            assert one.post("/generate", json=generate_body("abc", 3)).json()["text"] == "abc"
        stream = raw_request(gateway.address, "/generate", generate_body("abc", 4000, stream=True))
        read_until(stream, b"\n\n")
        killed_at = time.monotonic()
        engine.kill()
        assert b"exit code -9" in read_until(stream, b"exit code -9")
        stream.close()
        assert time.monotonic() - killed_at < 2
        assert gateway.wait(10)
        with pytest.raises(EngineDied, match="exit code -9"):
            gateway.raise_failure()
