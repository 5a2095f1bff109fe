"""The shared segment: publish, attach, state, slots, the sweep of dead owners, corruption; the contract as JSON."""

from __future__ import annotations

import os
import stat
import struct
import subprocess
import sys
import threading
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sglang_subgw.contract import (
    REQUIRED,
    EngineContract,
    FeatureFacts,
    GatewayState,
    ModelFacts,
    Segment,
    ShardState,
    WireFacts,
    Word,
    process_start_time,
    sweep_stale,
)
from sglang_subgw.contract.segment import NAME_PREFIX
from sglang_subgw.errors import ContractError

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
SCALAR = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False) | TEXT
JSON = st.recursive(SCALAR, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3))
FIELDS = st.lists(st.tuples(TEXT, JSON | st.just(REQUIRED)), max_size=4).map(tuple)

CONTRACTS = st.builds(
    EngineContract,
    engine_id=st.from_regex(r"[0-9a-f]{12}", fullmatch=True),
    sglang_version=TEXT,
    wire=st.builds(
        WireFacts,
        worker_endpoint=TEXT,
        runtime_dir=TEXT,
        codec=st.sampled_from(["pickle", "msgpack"]),
        schema=st.dictionaries(TEXT, FIELDS, max_size=3),
        modules=st.dictionaries(TEXT, TEXT, max_size=3),
    ),
    model=st.builds(
        ModelFacts,
        model_path=TEXT,
        served_model_name=TEXT,
        architectures=st.lists(TEXT, max_size=2).map(tuple),
        context_length=st.integers(0, 2**40),
        vocab_size=st.integers(0, 2**31),
        max_req_input_len=st.integers(0, 2**40),
        chat_template=st.none() | TEXT,
        special_tokens=st.dictionaries(TEXT, JSON, max_size=3),
        default_sampling_params=st.dictionaries(TEXT, JSON, max_size=3),
    ),
    features=st.builds(FeatureFacts, num_dp_ranks=st.integers(1, 64), default_priority=st.none() | st.integers()),
    server_args=st.dictionaries(TEXT, JSON, max_size=4),
    scheduler_info=st.dictionaries(TEXT, JSON, max_size=4),
)


def small_contract(**facts) -> EngineContract:
    return EngineContract(
        engine_id="0123456789ab",
        sglang_version="0.5.23",
        wire=WireFacts(worker_endpoint="ipc:///x", runtime_dir="/x", codec="pickle", schema={"A": (("a", REQUIRED),)}),
        model=ModelFacts(
            model_path="m", served_model_name="m", context_length=10, vocab_size=5, max_req_input_len=4, **facts
        ),
    )


@given(contract=CONTRACTS)
@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow], deadline=None)
def test_a_contract_survives_json(contract: EngineContract):
    assert EngineContract.from_json(contract.to_json()) == contract


@given(contract=CONTRACTS, slots=st.integers(1, 9))
@settings(max_examples=20, suppress_health_check=[HealthCheck.too_slow], deadline=None)
def test_a_contract_survives_the_segment(contract: EngineContract, slots: int):
    with Segment.publish(contract, slots=slots) as owner, Segment.attach(owner.name) as other:
        assert other.contract() == contract
        assert len(other.slots) == slots


def test_the_segment_is_private_and_named_after_its_owner():
    with Segment.publish(small_contract(), slots=1) as owner:
        path = Path("/dev/shm") / owner.name
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert owner.name.startswith(f"{NAME_PREFIX}{os.getpid()}_")
        assert owner.owner_pid == os.getpid()
        assert owner.owner_start == process_start_time(os.getpid())
    assert not path.exists()


def test_closing_twice_is_safe_and_an_attached_view_does_not_unlink():
    owner = Segment.publish(small_contract(), slots=1)
    Segment.attach(owner.name).close()
    Segment.attach(owner.name).close()
    owner.close()
    owner.close()


def test_two_segments_of_one_process_differ():
    with Segment.publish(small_contract(), slots=1) as one, Segment.publish(small_contract(), slots=1) as two:
        assert one.name != two.name


def test_state_and_reason_reach_the_others():
    with Segment.publish(small_contract(), slots=1) as owner, Segment.attach(owner.name) as other:
        assert (other.state, other.reason) == (GatewayState.STARTING, "")
        owner.set_state(GatewayState.FAILED, "why: ü")
        assert (other.state, other.reason) == (GatewayState.FAILED, "why: ü")


def test_a_reason_of_any_length_is_cut_to_what_fits():
    with Segment.publish(small_contract(), slots=1) as owner:
        owner.set_state(GatewayState.FAILED, "ü" * 5000)
        assert 0 < len(owner.reason) < 1024
        assert owner.contract() == small_contract()


def test_words_of_a_slot_are_seen_by_others_and_stay_in_their_slot():
    with Segment.publish(small_contract(), slots=3) as owner, Segment.attach(owner.name) as other:
        other.slots[1].set(Word.STATE, ShardState.READY)
        other.slots[1].add(Word.FINISHED, 7)
        other.slots[1].beat()
        assert owner.slots[1].state is ShardState.READY
        assert owner.slots[1].get(Word.FINISHED) == 7
        assert owner.slots[1].snapshot()["state"] == "ready"
        assert owner.slots[1].get(Word.HEARTBEAT_NS) > 0
        for index in (0, 2):
            assert owner.slots[index].state is ShardState.EMPTY
            assert owner.slots[index].get(Word.FINISHED) == 0


def test_load_counts_connections_on_their_way():
    with Segment.publish(small_contract(), slots=1) as owner:
        slot = owner.slots[0]
        idle = slot.load
        slot.add(Word.ACCEPTED)
        assert slot.load > idle


def test_a_slot_is_at_an_aligned_place_whatever_the_contract_s_length():
    for length in range(70):
        with Segment.publish(small_contract(chat_template="x" * length), slots=2) as owner:
            owner.slots[1].set(Word.CHUNKS, 2**64 - 1)
            assert owner.contract().model.chat_template == "x" * length


def test_parallel_writers_of_different_slots():
    with Segment.publish(small_contract(), slots=4) as owner:

        def count(index: int) -> None:
            for _ in range(2000):
                owner.slots[index].add(Word.CHUNKS)

        threads = [threading.Thread(target=count, args=(index,)) for index in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [slot.get(Word.CHUNKS) for slot in owner.slots] == [2000] * 4


def test_attaching_to_nothing_says_so():
    with pytest.raises(ContractError, match="no segment named 'sglang_subgw_0_0'"):
        Segment.attach("sglang_subgw_0_0")


@pytest.fixture
def foreign():
    memory = SharedMemory(create=True, size=4096, track=False)
    try:
        yield memory
    finally:
        memory.close()
        memory.unlink()


def test_a_segment_of_someone_else_is_refused(foreign):
    with pytest.raises(ContractError, match="not a segment of sglang_subgw"):
        Segment.attach(foreign.name.lstrip("/"))


def test_another_layout_is_refused_by_number(foreign):
    foreign.buf[:12] = b"SGSUBGW\0" + struct.pack("<I", 99)
    with pytest.raises(ContractError, match="layout 99"):
        Segment.attach(foreign.name.lstrip("/"))


def test_a_closed_segment_says_so():
    owner = Segment.publish(small_contract(), slots=1)
    owner.close()
    with pytest.raises(ContractError, match="closed"):
        owner.contract()


LEAVE = """
import os, sys
sys.path.insert(0, {tests!r})
from test_contract import small_contract
from sglang_subgw.contract import Segment
segment = Segment.publish(small_contract(), slots=1)
print(segment.name, flush=True)
os.kill(os.getpid(), 9)
"""


def test_the_sweep_takes_segments_of_killed_owners_only():
    program = LEAVE.format(tests=str(Path(__file__).parent))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    left = done.stdout.strip()
    assert done.stderr == ""
    assert (Path("/dev/shm") / left).exists()
    with Segment.publish(small_contract(), slots=1) as owner:
        removed = sweep_stale()
        assert left in removed
        assert owner.name not in removed
        assert Segment.attach(owner.name).close() is None
    assert not (Path("/dev/shm") / left).exists()


def test_the_sweep_takes_a_segment_whose_pid_is_someone_else_s_by_now():
    owner = Segment.publish(small_contract(), slots=1)
    path = Path("/dev/shm") / owner.name
    data = bytearray(path.read_bytes())
    struct.pack_into("<Q", data, 24, owner.owner_start + 1)
    path.write_bytes(data)
    assert owner.name in sweep_stale()
    owner.slots[0].release()
    owner._memory.close()


def test_the_sweep_leaves_other_names_alone():
    path = Path("/dev/shm") / f"{NAME_PREFIX}notes"
    path.write_text("mine")
    try:
        assert path.name not in sweep_stale()
        assert path.exists()
    finally:
        path.unlink()


def test_a_subprocess_attaches_without_a_warning_and_without_unlinking():
    with Segment.publish(small_contract(), slots=1) as owner:
        program = (
            "import sys; from sglang_subgw.contract import Segment, Word\n"
            "with Segment.attach(sys.argv[1]) as s: s.slots[0].set(Word.CHUNKS, 5); print(s.contract().engine_id)"
        )
        command = [sys.executable, "-W", "error", "-c", program, owner.name]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (done.stdout, done.stderr) == ("0123456789ab\n", "")
        assert owner.slots[0].get(Word.CHUNKS) == 5
        assert (Path("/dev/shm") / owner.name).exists()
