"""Load snapshots against SGLang's own code: what its schedulers write, read as it reads it."""

from __future__ import annotations

import asyncio
import dataclasses
import tempfile
from contextlib import ExitStack, closing
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("msgspec")

from sglang_subgw.engine_api.loads import _left_out
from sglang_subgw.errors import RequestRejected
from sglang_subgw.http.native.loads import _metrics
from sglang_subgw.worker.load_snapshots import LoadSnapshots
from support.stock.publications import published_load_facts, publishing_modules

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(300)]

RANKS = 3


@pytest.fixture(scope="session")
def srt() -> Any:
    return publishing_modules()


@pytest.fixture(scope="session")
def facts(srt: Any) -> Any:
    return published_load_facts(srt)


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
