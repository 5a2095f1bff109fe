"""What SGLang publishes, by its own code: where its loads and KV cache events are, and why there are none."""

from __future__ import annotations

import atexit
import dataclasses
import json
import re
import socket
from pathlib import Path
from typing import Any

import pytest
import zmq

pytest.importorskip("msgspec")

from sglang_subgw.engine.facts.publications import kv_event_facts
from sglang_subgw.simulated.publications import facts as simulated
from support.stock.publications import published_load_facts, publishing_modules

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(300)]


@pytest.fixture(scope="session")
def srt() -> Any:
    return publishing_modules()


@pytest.fixture(scope="session")
def facts(srt: Any) -> Any:
    return published_load_facts(srt)


def test_the_simulated_engine_s_forms_are_sglang_s(srt: Any, facts: Any) -> None:
    assert facts.path == srt.loads.shm_path_for("an instance")
    assert dataclasses.replace(simulated.load_facts(Path("/r")), path=facts.path) == facts
    real = kv_event_facts({"kv_events_config": '{"publisher": "zmq"}', "page_size": 16}, {}, 2, Path("/r"))
    made = simulated.kv_event_facts(Path("/r"), 2, {"publisher": "zmq"})
    assert made.events == real.events
    assert made.socket == real.socket


def free_ports(count: int) -> list[int]:
    """Some that follow one another and were free a moment ago."""
    while True:
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))
            first = int(sock.getsockname()[1])
        if first + count < 65536:
            return list(range(first, first + count))


@pytest.mark.parametrize(
    "config",
    [
        {"endpoint": "tcp://*:{}"},
        {"endpoint": "tcp://0.0.0.0:{}", "replay_endpoint": "tcp://*:{}", "topic": "kv"},
        {"endpoint": "tcp://127.0.0.1:{}", "bind": True},
    ],
    ids=lambda config: config["endpoint"],
)
def test_its_publishers_are_found_where_they_say(
    srt: Any, config: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    ports = free_ports(4)
    config = {"publisher": "zmq"} | {
        name: value.format(ports[2] if name == "replay_endpoint" else ports[0]) if isinstance(value, str) else value
        for name, value in config.items()
    }
    text = json.dumps(config)
    args = {"kv_events_config": text, "page_size": 8}
    facts = kv_event_facts(args, {}, 2, Path("/r"))
    with zmq.Context() as context:
        monkeypatch.setattr(srt.kv.zmq.Context, "instance", lambda: context)
        publishers = [srt.kv.EventPublisherFactory.create(text, rank) for rank in range(2)]
        described = [publisher.describe_local_source(8) for publisher in publishers]
        for publisher in publishers:
            publisher.shutdown()
            atexit.unregister(publisher.shutdown)
    assert [dataclasses.asdict(source) for source in facts.sources] == [
        {"replay_endpoint": "", **source} for source in described
    ]
    reported = kv_event_facts(args, {"kv_event_sources": described}, 2, Path("/r"))
    assert reported.sources == facts.sources


def test_others_of_this_machine_are_reached_by_a_loopback_address(srt: Any) -> None:
    def endpoint(given: str) -> str:
        config = json.dumps({"publisher": "zmq", "endpoint": given})
        return kv_event_facts({"kv_events_config": config}, {}, 1, Path("/r")).sources[0].endpoint

    assert endpoint("tcp://[::]:5557") == "tcp://[::1]:5557"
    assert endpoint("ipc:///a/b") == "ipc:///a/b"
    assert endpoint("ipc://b") == f"ipc://{Path.cwd()}/b"
    assert endpoint("ipc://@abstract") == "ipc://@abstract"


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (None, "without --kv-events-config"),
        ('{"publisher": "null"}', "its publisher is 'null'"),
        ('{"publisher": "zmq", "endpoint": "tcp://elsewhere:5557"}', 'connects to tcp://elsewhere:5557.*"bind": true'),
        ('{"publisher": "zmq", "endpoint": "inproc://here"}', "within its own process"),
        ('{"publisher": "zmq", "endpoint": "tcp://*:0"}', "a port that the system chose"),
    ],
)
def test_why_there_are_no_events_is_told(srt: Any, config: str | None, said: str) -> None:
    facts = kv_event_facts({"kv_events_config": config}, {}, 1, Path("/r"))
    assert not facts.sources
    assert re.search(said, facts.unavailable)
