"""SIGTTIN and SIGTTOU on the command line: one shard more, one less, and no less than one."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from sglang_subgw.config import Mode
from sglang_subgw.engine.published import PublishedEngine
from sglang_subgw.engine.simulated import SimulatedEngine
from support.attached import attached
from support.client import client
from support.faults import until
from support.stack import generate_body


@pytest.fixture
def published(runtime_dir: Path) -> Iterator[PublishedEngine]:
    with SimulatedEngine(runtime_dir) as engine, PublishedEngine(engine) as published:
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
        gateway.send(signal.SIGTERM)
        assert gateway.wait() == 0, gateway.log
        assert "Traceback" not in gateway.log
