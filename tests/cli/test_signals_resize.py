"""SIGTTIN and SIGTTOU on the command line: one shard more, one less, and no less than one."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from sglang_subgw.config import Mode
from sglang_subgw.engine.attach.published import PublishedEngine
from sglang_subgw.simulated import SimulatedEngine
from support.attached import attached
from support.client import client, raw_request, read_until
from support.faults import until
from support.stack import generate_body


@pytest.fixture
def published(runtime_dir: Path) -> Iterator[PublishedEngine]:
    with SimulatedEngine(runtime_dir, step_seconds=0.01) as engine, PublishedEngine(engine) as published:
        yield published
        assert engine.violations == []


def test_sigttin_adds_a_shard_and_sigttou_takes_one_away(mode: Mode, published: PublishedEngine):
    with attached(published.name, mode=mode) as gateway:

        def ready() -> int:
            with client(gateway.address) as one:
                assert one.post("/generate", json=generate_body("abc", 3)).json()["text"] == "abc"
                shards = one.get("/server_info").json()["sglang_subgw"]["shards"]
            return len(shards) if {shard["state"] for shard in shards} == {"ready"} else 0

        assert ready() == 2
        for signum, count in ((signal.SIGTTIN, 3), (signal.SIGTTOU, 2), (signal.SIGTTOU, 1)):
            gateway.send(signum)
            until(lambda count=count: ready() == count, 20, f"{count} shards")
        gateway.send(signal.SIGTTOU)
        until(lambda: "shards must be from 1 to 256, not 0" in gateway.log, 5, "the log line")
        assert ready() == 1
        stream = raw_request(gateway.address, "/generate", generate_body("abc", 200, stream=True))
        read_until(stream, b"\n\n")
        gateway.send(signal.SIGTERM)
        until(lambda: "SIGTERM: finishing what runs" in gateway.log, 5, "the log line")
        gateway.send(signal.SIGTTIN)
        until(lambda: "SIGTTIN comes too late: the server is stopping" in gateway.log, 5, "the log line")
        assert b"[DONE]" in read_until(stream, b"[DONE]")
        stream.close()
        assert gateway.wait() == 0, gateway.log
        assert "Traceback" not in gateway.log
