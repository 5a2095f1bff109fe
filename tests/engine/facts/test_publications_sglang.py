"""Load snapshots and KV cache events against SGLang's own code: its writers, our readers, and the other way round."""

from __future__ import annotations

import asyncio
import atexit
import dataclasses
import json
import re
import socket
import tempfile
import warnings
from contextlib import ExitStack, closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import zmq
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("msgspec")

import msgspec

from sglang_subgw.engine.facts.publications import kv_event_facts, load_facts
from sglang_subgw.engine_api.loads import _left_out
from sglang_subgw.errors import RequestRejected
from sglang_subgw.http.native.loads import _metrics
from sglang_subgw.kv_events.replay import replay
from sglang_subgw.kv_events.subscription import KvEventBatch, KvSubscription
from sglang_subgw.simulated.publications import facts as simulated
from sglang_subgw.simulated.publications.kv_publisher import KvPublisher
from sglang_subgw.worker.load_snapshots import LoadSnapshots
from sglang_subgw.worker.requests.routing import FAKE_HOST, _is_host

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(300)]

RANKS = 3


@pytest.fixture(scope="session")
def srt() -> Any:
    """SGLang's modules that these tests compare with."""
    pytest.importorskip("sglang")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from sglang.srt.disaggregation import kv_events
        from sglang.srt.entrypoints import v1_loads
        from sglang.srt.managers import load_snapshot
    return SimpleNamespace(loads=load_snapshot, v1_loads=v1_loads, kv=kv_events)


@pytest.fixture(scope="session")
def facts(srt: Any) -> Any:
    """The layout as an engine would publish it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(srt.v1_loads, "_accelerator_name", lambda: None)
        patch.setattr(srt.v1_loads, "_num_accelerators_per_dp_rank", lambda: 1)
        return load_facts(SimpleNamespace(port_args=SimpleNamespace(instance_id="an instance")))


def test_the_simulated_engine_s_forms_are_sglang_s(srt: Any, facts: Any) -> None:
    assert facts.path == srt.loads.shm_path_for("an instance")
    assert dataclasses.replace(simulated.load_facts(Path("/r")), path=facts.path) == facts
    real = kv_event_facts({"kv_events_config": '{"publisher": "zmq"}', "page_size": 16}, {}, 2, Path("/r"))
    made = simulated.kv_event_facts(Path("/r"), 2, {"publisher": "zmq"})
    assert made.events == real.events
    assert made.socket == real.socket


FLOAT = st.floats(0, 1e9)
COUNT = st.integers(0, 2**40)


def sections(srt: Any) -> dict[str, st.SearchStrategy[Any]]:
    loads = srt.loads
    return {
        "memory": st.builds(loads.MemoryMetrics, FLOAT, FLOAT, FLOAT, COUNT),
        "speculative": st.builds(loads.SpeculativeMetrics, FLOAT, FLOAT),
        "lora": st.builds(loads.LoRAMetrics, COUNT, COUNT, FLOAT),
        "disaggregation": st.builds(loads.DisaggregationMetrics, st.sampled_from(["prefill", "null"]), COUNT, COUNT),
        "queues": st.builds(loads.QueueMetrics, COUNT, COUNT, COUNT, COUNT, COUNT),
    }


@given(data=st.data())
def test_what_its_schedulers_write_is_read_as_it_reads_it(srt: Any, facts: Any, data: st.DataObject) -> None:
    loads = srt.loads
    optional = {name: st.none() | strategy for name, strategy in sections(srt).items()}
    fields = st.fixed_dictionaries(
        {"timestamp": FLOAT},
        optional={
            "num_running_reqs": COUNT,
            "token_usage": FLOAT,
            "decode_moments": st.none() | st.lists(FLOAT, max_size=4),
            **optional,
        },
    )
    names = sorted(loads.LoadSnapshot.VALID_SECTIONS | {"weather"})
    include = data.draw(st.none() | st.sets(st.sampled_from(names)))
    written = data.draw(st.dictionaries(st.integers(0, RANKS - 1), fields))
    with tempfile.TemporaryDirectory() as directory, ExitStack() as open_files:
        path = f"{directory}/loads"
        for rank in range(RANKS):
            writer = open_files.enter_context(closing(loads.ShmLoadSnapshotWriter(path, RANKS, rank)))
            if rank in written:
                writer.write(loads.LoadSnapshot(dp_rank=rank, **written[rank]))
        here = dataclasses.replace(facts, path=path)
        ours = asyncio.run(LoadSnapshots(here, RANKS).read())
        stock = open_files.enter_context(closing(loads.ShmLoadSnapshotReader(path, RANKS))).read_all()
    try:
        expected = [load.to_dict(include) for load in stock]
    except ValueError as exc:
        with pytest.raises(RequestRejected, match=str(exc).partition(":")[0]):
            _left_out(here, list(include or ()))
        return
    left_out = _left_out(here, None if include is None else list(include))
    got = [{name: value for name, value in load.items() if name not in left_out} for load in ours]
    assert got == expected
    assert [list(load) for load in got] == [list(load) for load in expected]
    assert _metrics(got, here.includes) == srt.v1_loads._format_loads_prometheus(stock, include).body


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


def test_its_events_are_read_with_every_field(srt: Any, tmp_path: Path) -> None:
    kv = srt.kv
    events = [
        kv.BlockStored([1, -2], None, [3, 4], 2, None, medium="GPU", session_id="s"),
        kv.BlockStored([5], 1, [6], 1, 7, lora_name="a", cache_salt="x"),
        kv.BlockRemoved([8], medium=kv.StorageMedium.CPU),
        kv.AllBlocksCleared(),
    ]
    payload = msgspec.msgpack.encode(kv.KVEventBatch(ts=1.5, events=events, attn_dp_rank=0))
    facts = kv_event_facts({"kv_events_config": '{"publisher": "zmq"}'}, {}, 1, Path("/r"))
    subscription = KvSubscription(facts, facts.sources, since=None, limit=1)
    [rank] = subscription._ranks.values()
    batch = subscription._decoded(rank, 9, payload)
    assert isinstance(batch, KvEventBatch)
    assert (batch.number, batch.timestamp) == (9, 1.5)
    expected = [{"type": type(event).__name__, **msgspec.structs.asdict(event)} for event in events]
    expected[2]["medium"] = "CPU_PINNED"
    assert batch.events == expected


def test_the_simulated_engine_s_events_are_read_by_it(srt: Any, runtime_dir: Path) -> None:
    facts = simulated.kv_event_facts(runtime_dir, 1, {"replay_endpoint": "tcp://*:1"})
    publisher = KvPublisher(facts)
    publisher.start()
    publisher.stored(range(20))
    publisher.publish([{"type": "BlockRemoved", "block_hashes": [3]}])
    publisher.cleared()

    async def read() -> list[bytes]:
        return [batch async for _, batch in replay(facts.sources[0].replay_endpoint, 0, 3)]

    batches = []
    while len(batches) < 3:
        batches = asyncio.run(read())
    publisher.close()
    decoder = msgspec.msgpack.Decoder(srt.kv.KVEventBatch)
    stored, removed, cleared = (decoder.decode(batch).events[0] for batch in batches)
    assert isinstance(stored, srt.kv.BlockStored)
    assert (stored.token_ids, stored.block_size) == (list(range(16)), 16)
    assert removed == srt.kv.BlockRemoved([3])
    assert cleared == srt.kv.AllBlocksCleared()


@pytest.mark.parametrize("host", ["prefill_0.svc.cluster.local.", "10.0.0.1", "::1", "[fe80::2]", "a" * 63, FAKE_HOST])
def test_a_host_that_is_let_through_is_an_address_to_its_decode_scheduler(srt: Any, host: str) -> None:
    from sglang.srt.utils.network import NetworkAddress

    assert _is_host(host)
    written = NetworkAddress(host, 8998).to_host_port_str()
    assert NetworkAddress.parse(written) == NetworkAddress(host, 8998)


def test_a_decode_scheduler_ends_by_a_host_that_is_missing(srt: Any) -> None:
    from sglang.srt.utils.network import NetworkAddress

    with pytest.raises(AttributeError):
        NetworkAddress(None, 8998)
