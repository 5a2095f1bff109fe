"""Ranks, and the meeting of prefill and decode: what gets past the checks can't end a scheduler."""

from __future__ import annotations

import asyncio
import warnings
from array import array
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_subgw.contract import EngineContract
from sglang_subgw.errors import RequestRejected
from sglang_subgw.simulated import SimulatedEngine
from sglang_subgw.worker.requests.build import Builder
from sglang_subgw.worker.requests.expand import expand
from sglang_subgw.worker.requests.request import EmbeddingRequest, GenerateRequest
from sglang_subgw.worker.requests.routing import FAKE_HOST, check_meeting, check_ranks
from support.shard_values import Shard, contract, shard_of, with_shard

PREFILL: dict[str, Any] = {"disaggregation_mode": "prefill", "disaggregation_transfer_backend": "mooncake"}
DECODE: dict[str, Any] = {"disaggregation_mode": "decode", "disaggregation_transfer_backend": "mooncake"}
FOLLOW = {"load_balance_method": "follow_bootstrap_room"}
MEET: dict[str, Any] = {"bootstrap_host": "prefill-0", "bootstrap_port": 8998, "bootstrap_room": 7}


def messages(request: GenerateRequest, engine: EngineContract) -> list[dict[str, Any]]:
    """The fields of what would be sent; raises RequestRejected."""
    check_ranks(request, engine)
    plan = expand(request)
    check_meeting(request, plan, engine)
    builder = Builder(engine, "ipc:///worker")
    return [builder.build(request, prompt, array("q", [1]), {}).fields for prompt in plan.prompts] * plan.samples


ANYTHING = (
    st.none()
    | st.booleans()
    | st.integers(-3, 70000)
    | st.sampled_from([2**31, 2**63 - 2, 2**63 - 1, 2**63, -(2**63), 2**64, 1.0, "", "7", FAKE_HOST, "h", "a b", {}])
)
FIELD = ANYTHING | st.lists(ANYTHING, max_size=4)
HOSTS = st.sampled_from(
    [None, "h", "10.0.0.1", "::1", "[::1]", "prefill_0.svc.", FAKE_HOST, "a b", "h:1", "-" * 64, "h/x"]
)
ROOMS = st.integers(1, 9) | st.sampled_from([0, 2**63 - 3, 2**63 - 1])


def one_or_each(value: Any) -> Any:
    return value | st.lists(value, min_size=3, max_size=3)


LIKELY = st.fixed_dictionaries(
    {},
    optional={
        "bootstrap_host": one_or_each(HOSTS),
        "bootstrap_port": one_or_each(st.none() | st.sampled_from([1, 8998, 65535, 0, 65536])),
        "bootstrap_room": one_or_each(ROOMS),
        "routed_dp_rank": st.none() | st.integers(-1, 4),
        "disagg_prefill_dp_rank": st.none() | st.integers(-1, 4),
    },
)
WILD = st.fixed_dictionaries(
    {}, optional=dict.fromkeys((*MEET, "routed_dp_rank", "data_parallel_rank", "disagg_prefill_dp_rank"), FIELD)
)
ENGINES = st.fixed_dictionaries(
    {
        "disaggregation_mode": st.sampled_from(["null", "prefill", "decode"]),
        "disaggregation_transfer_backend": st.sampled_from(["mooncake", "fake"]),
        "num_dp_ranks": st.integers(1, 3),
    }
)


@given(
    fields=LIKELY | WILD,
    features=ENGINES,
    text=st.sampled_from(["a", ["a"], ["a", "b", "c"]]),
    samples=st.integers(1, 3),
    follows=st.booleans(),
)
def test_what_is_let_through_hurts_no_scheduler(
    fields: dict[str, Any], features: dict[str, Any], text: Any, samples: int, follows: bool
) -> None:
    engine = contract(server_args=FOLLOW if follows else {}, **features)
    request = GenerateRequest(text=text, sampling_params={"n": samples}, **fields)
    try:
        sent = messages(request, engine)
    except RequestRejected:
        return
    ranks = features["num_dp_ranks"]
    for message in sent:
        assert type(message.get("routed_dp_rank", 0)) is int
        assert 0 <= message.get("routed_dp_rank", 0) < ranks
        assert type(message.get("disagg_prefill_dp_rank", 0)) is int
        assert 0 <= message.get("disagg_prefill_dp_rank", 0) < 2**31
        if follows and ranks > 1:
            assert {"routed_dp_rank", "bootstrap_room"} & message.keys()
    if features["disaggregation_mode"] == "null":
        return
    transfers = [
        message
        for message in sent
        if features["disaggregation_transfer_backend"] != "fake" and message.get("bootstrap_host") != FAKE_HOST
    ]
    rooms = [message["bootstrap_room"] for message in transfers]
    assert all(type(room) is int and 1 <= room < 2**63 for room in rooms)
    assert len(set(rooms)) == len(rooms)
    for message in sent:
        assert message["bootstrap_room"] is not None
        host, port = message.get("bootstrap_host"), message.get("bootstrap_port", 1)
        assert type(port) is int
        assert 1 <= port <= 65535
        assert host is None or (type(host) is str and host and not set(host) & set("/ \n@?#"))
        assert host is not None or features["disaggregation_mode"] == "prefill"


@given(room=st.integers(1, 2**62), count=st.integers(1, 5))
def test_one_room_stands_for_as_many_as_there_are_prompts(room: int, count: int) -> None:
    request = GenerateRequest(text=["a"] * count, **{**MEET, "bootstrap_room": room})
    sent = messages(request, contract(**DECODE))
    assert [message["bootstrap_room"] for message in sent] == [room + i for i in range(count)]
    assert {(message["bootstrap_host"], message["bootstrap_port"]) for message in sent} == {("prefill-0", 8998)}


@pytest.mark.parametrize(
    ("features", "fields", "param", "said"),
    [
        (
            DECODE,
            {"bootstrap_host": None},
            "bootstrap_host",
            "bootstrap_host is needed: it is where the prefill server",
        ),
        (DECODE, {"bootstrap_host": "http://p:1/x"}, "bootstrap_host", "name or address, not 'http://p:1/x'"),
        (DECODE, {"bootstrap_host": ""}, "bootstrap_host", "not ''"),
        (DECODE, {"bootstrap_host": "[10.0.0.1]"}, "bootstrap_host", r"not '\[10.0.0.1\]'"),
        (DECODE, {"bootstrap_port": 0}, "bootstrap_port", "between 1 and 65535, not 0"),
        (PREFILL, {"bootstrap_port": 65536}, "bootstrap_port", "between 1 and 65535, not 65536"),
        (PREFILL, {"bootstrap_room": None}, "bootstrap_room", "without bootstrap room id"),
        (PREFILL, {"bootstrap_room": 0}, "bootstrap_room", "between 1 and 9223372036854775807, not 0"),
        (PREFILL, {"bootstrap_room": -1}, "bootstrap_room", "not -1"),
        (PREFILL, {"bootstrap_room": 2**63}, "bootstrap_room", "must be an integer"),
        (PREFILL, {"text": ["a", "b"], "bootstrap_room": 2**63 - 1}, "bootstrap_room", f"not {2**63}"),
        (PREFILL, {"text": ["a", "b"], "bootstrap_room": [5, 5]}, "bootstrap_room", "another one for each prompt"),
        (PREFILL, {"text": ["a", "b"], "bootstrap_room": [5, None]}, "bootstrap_room", "without bootstrap room id"),
        (PREFILL, {"text": ["a", "b"], "bootstrap_room": [5]}, "bootstrap_room", "equal to the batch size"),
        (PREFILL, {"sampling_params": {"n": 2}}, "n", "each answer needs a bootstrap room of its own"),
        (PREFILL, {"bootstrap_room": True}, "bootstrap_room", "must be an integer"),
        (PREFILL, {"bootstrap_port": "8998"}, "bootstrap_port", "must be an integer"),
        (PREFILL, {"bootstrap_host": 7}, "bootstrap_host", "must be a string"),
        (PREFILL, {"disagg_prefill_dp_rank": -1}, "disagg_prefill_dp_rank", "an integer from 0 up, not -1"),
        (DECODE, {"disagg_prefill_dp_rank": True}, "disagg_prefill_dp_rank", "not True"),
        ({}, {"routed_dp_rank": 1}, "routed_dp_rank", r"routed_dp_rank=1 out of range \[0, 1\)"),
        ({"num_dp_ranks": 2}, {"routed_dp_rank": 2}, "routed_dp_rank", r"routed_dp_rank=2 out of range \[0, 2\)"),
        ({"num_dp_ranks": 2}, {"routed_dp_rank": -1}, "routed_dp_rank", "out of range"),
        ({"num_dp_ranks": 2}, {"routed_dp_rank": False}, "routed_dp_rank", "out of range"),
        ({"num_dp_ranks": 2}, {"data_parallel_rank": 2}, "routed_dp_rank", "out of range"),
    ],
    ids=str,
)
def test_what_would_end_a_scheduler_is_named(
    features: dict[str, Any], fields: dict[str, Any], param: str, said: str
) -> None:
    request = GenerateRequest(**{"text": "a", **MEET, **fields})
    with pytest.raises(RequestRejected, match=said) as refused:
        messages(request, contract(**features))
    assert refused.value.param == param


def test_where_nothing_is_transferred_no_room_is_needed() -> None:
    fake = {**DECODE, "disaggregation_transfer_backend": "fake"}
    request = GenerateRequest(text=["a", "b"], sampling_params={"n": 2})
    sent = messages(request, contract(**fake))
    assert {message["bootstrap_host"] for message in sent} == {FAKE_HOST}
    assert [message["bootstrap_room"] for message in sent] == [0, 1, 0, 1]
    warm_up = GenerateRequest(text="a", bootstrap_host=FAKE_HOST, bootstrap_room=0, sampling_params={"n": 2})
    assert messages(warm_up, contract(**DECODE))


def test_a_controller_that_follows_rooms_is_given_one() -> None:
    engine = contract(server_args=FOLLOW, num_dp_ranks=2)
    with pytest.raises(RequestRejected, match="without bootstrap room id"):
        messages(GenerateRequest(text="a"), engine)
    assert messages(GenerateRequest(text="a", routed_dp_rank=1), engine)
    assert messages(GenerateRequest(text="a", bootstrap_room=3), engine)
    assert messages(GenerateRequest(text="a"), contract(server_args=FOLLOW, num_dp_ranks=1))


@pytest.mark.parametrize("features", [PREFILL, DECODE, {"num_dp_ranks": 2}], ids=["prefill", "decode", "follow"])
def test_an_engine_lives_through_health_checks_and_wrong_requests(runtime_dir: Path, features: dict[str, Any]) -> None:
    async def scenario(shard: Shard) -> None:
        shard.simulated.contract.server_args.update(FOLLOW)
        shard.worker.contract.server_args.update(FOLLOW)
        assert await shard.engine.health_generate(5)
        with pytest.raises(RequestRejected):
            await shard.engine.async_generate("a")
        await shard.engine.async_generate("a", {"max_new_tokens": 1}, **MEET)
        await shard.engine.async_generate(["a", "b"], {"max_new_tokens": 1}, **MEET)
        assert shard.simulated.router_alive()

    with_shard(runtime_dir, scenario, features=features)


def test_embeddings_don_t_go_where_rooms_are_followed(runtime_dir: Path) -> None:
    async def scenario(shard: Shard) -> None:
        shard.simulated.contract.server_args.update(FOLLOW)
        shard.worker.contract.server_args.update(FOLLOW)
        assert await shard.engine.health_generate(5)
        with pytest.raises(RequestRejected, match="follow_bootstrap_room"):
            await shard.worker.submit(EmbeddingRequest(text="a"))
        assert shard.simulated.router_alive()

    with_shard(runtime_dir, scenario, features={"num_dp_ranks": 2}, model={"is_generation": False})


def test_a_room_is_in_use_until_its_request_has_ended(runtime_dir: Path) -> None:
    async def run(simulated: SimulatedEngine) -> None:
        async with shard_of(simulated, index=0) as one, shard_of(simulated, index=1) as other:
            simulated.set_faults(stall=True)
            running = asyncio.ensure_future(one.engine.async_generate("a", {"max_new_tokens": 1}, **MEET))
            while not one.worker.active:
                await asyncio.sleep(0.001)
            for shard in (one, other):
                for rooms in (7, [8, 7]):
                    text = "a" if rooms == 7 else ["a", "b"]
                    with pytest.raises(RequestRejected, match="bootstrap_room 7 is in use by a request"):
                        await shard.engine.async_generate(text, **{**MEET, "bootstrap_room": rooms})
            simulated.set_faults(stall=False)
            await running
            await other.engine.async_generate(["a", "b"], {"max_new_tokens": 1}, **{**MEET, "bootstrap_room": [8, 7]})

    with SimulatedEngine(runtime_dir, features=DECODE) as simulated:
        asyncio.run(run(simulated))
        assert simulated.violations == []


def test_the_older_name_of_a_rank_is_warned_of(runtime_dir: Path) -> None:
    async def scenario(shard: Shard) -> None:
        engine = shard.engine
        for ranks, rank in (({"data_parallel_rank": 1}, 1), ({"data_parallel_rank": 1, "routed_dp_rank": 0}, 0)):
            for call in (engine.async_generate, lambda *args, **kw: asyncio.to_thread(engine.generate, *args, **kw)):
                with warnings.catch_warnings(record=True) as caught:
                    warnings.simplefilter("always")
                    await call("a", {"max_new_tokens": 1}, **ranks)
                [warning] = caught
                assert warning.category is DeprecationWarning
                assert "use 'routed_dp_rank' instead" in str(warning.message)
                assert shard.simulated.requests()[-1].routed_dp_rank == rank
        assert "test_routing" in warning.filename or "thread" in warning.filename

    with_shard(runtime_dir, scenario, features={"num_dp_ranks": 2})
