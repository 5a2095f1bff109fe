"""Load snapshots as a shard reads them: what is there, what is left out, and what can't be read."""

from __future__ import annotations

import asyncio
import dataclasses
import fcntl
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sglang_subgw.contract import LoadFacts
from sglang_subgw.errors import EngineUnavailable
from sglang_subgw.simulated.publications.facts import load_facts
from sglang_subgw.simulated.publications.loads import LoadPublisher
from sglang_subgw.worker.load_snapshots import LoadSnapshots

RANKS = 3


@pytest.fixture
def facts(runtime_dir: Path) -> LoadFacts:
    return load_facts(runtime_dir / "loads")


@pytest.fixture
def published(facts: LoadFacts) -> Iterator[LoadPublisher]:
    publisher = LoadPublisher(facts, RANKS)
    publisher.start()
    yield publisher
    publisher.close()


def read(facts: LoadFacts, rank: int | None = None, *, ranks: int = RANKS) -> list[dict[str, Any]]:
    return asyncio.run(LoadSnapshots(facts, ranks).read(rank))


def test_every_rank_has_the_fields_of_sglang_and_its_defaults(facts: LoadFacts, published: LoadPublisher) -> None:
    published.write(1, {"num_running_reqs": 7, "queues": [1, 2, 3, 4, 5], "decode_moments": [1.5, 2.5]})
    zero, one, two = read(facts)
    assert list(zero) == [name for name, _ in facts.fields if name not in facts.sections]
    assert (zero["dp_rank"], one["dp_rank"], two["dp_rank"]) == (0, 1, 2)
    assert (zero["num_running_reqs"], zero["decode_moments"], "queues" in zero) == (0, None, False)
    assert (one["num_running_reqs"], one["decode_moments"]) == (7, [1.5, 2.5])
    assert one["queues"] == {"waiting": 1, "grammar": 2, "paused": 3, "retracted": 4, "prealloc_ready": 5}
    assert read(facts, 1) == [one]


def test_what_a_newer_or_older_sglang_writes_is_read(facts: LoadFacts, published: LoadPublisher) -> None:
    published.write(0, {"disaggregation": ["decode"], "queues": [1, 2, 3, 4, 5, 6]})
    load = read(facts, 0)[0]
    assert load["disaggregation"]["mode"] == "decode"
    assert load["disaggregation"]["decode_transfer_queue_reqs"] == 0
    assert len(load["queues"]) == 5


def test_nothing_is_published_yet(facts: LoadFacts) -> None:
    assert read(facts) == []
    Path(facts.path).touch(0o600)
    assert read(facts) == []
    Path(facts.path).unlink()


def test_a_rank_that_is_just_being_written_is_left_out(facts: LoadFacts, published: LoadPublisher) -> None:
    at = struct.calcsize(facts.header) + 16 * 1024
    with open(facts.path, "r+b") as file:
        os.pwrite(file.fileno(), b"\0" * 4, at)
    assert [load["dp_rank"] for load in read(facts)] == [0, 2]


@pytest.mark.parametrize(
    "change", [{"magic": "ABCD"}, {"version": 3}, {"ranks": 2}], ids=["magic", "version", "number of ranks"]
)
def test_a_file_of_another_kind_is_refused(facts: LoadFacts, published: LoadPublisher, change: dict[str, Any]) -> None:
    ranks = change.pop("ranks", RANKS)
    with pytest.raises(EngineUnavailable, match="of another kind"):
        read(dataclasses.replace(facts, **change), ranks=ranks)


@pytest.mark.parametrize(
    "values", [{"queues": 3}, {"queues": [1, 2]}, {"memory": "x"}], ids=["no record", "too short", "text"]
)
def test_a_broken_snapshot_is_told(facts: LoadFacts, published: LoadPublisher, values: dict[str, Any]) -> None:
    published.write(2, values)
    with pytest.raises(EngineUnavailable, match="rank 2's snapshot is broken"):
        read(facts)


def test_a_writer_that_hangs_stops_nobody_else(facts: LoadFacts, published: LoadPublisher) -> None:
    fcntl.flock(published._file, fcntl.LOCK_EX)

    async def both() -> int:
        turns = 0
        reading = asyncio.ensure_future(LoadSnapshots(facts, RANKS).read())
        while not reading.done():
            await asyncio.sleep(0.005)
            turns += 1
        with pytest.raises(EngineUnavailable, match="kept it locked for 1 s"):
            await reading
        return turns

    assert asyncio.run(both()) > 50
    fcntl.flock(published._file, fcntl.LOCK_UN)
    assert len(read(facts)) == RANKS
