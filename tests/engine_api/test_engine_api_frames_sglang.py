"""Every control method: the messages that a shard sends are those of SGLang's own Engine and worker, field by field."""

from __future__ import annotations

import asyncio
import re
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

pytest.importorskip("msgspec")

import msgspec

from sglang_subgw.engine_api.engine import ShardEngine
from sglang_subgw.simulated import SimulatedEngine
from sglang_subgw.simulated.wire.schema import VERSION
from sglang_subgw.wire.outgoing.control_fields import CONTROL
from sglang_subgw.wire.sockets import WorkerSocket
from support.shard_values import shard_of
from support.stock.control import ENDPOINT, StockEngine, Wire

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(240)]


@pytest.fixture(scope="session")
def srt() -> Any:
    """SGLang's modules that send; what their import opens stays open in this process."""
    pytest.importorskip("sglang")
    from sglang.version import __version__

    if __version__ != VERSION:
        pytest.skip(f"the simulated engine's schema is that of {VERSION}, installed is {__version__}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from sglang.srt.entrypoints import engine
        from sglang.srt.managers import io_struct, multi_tokenizer_mixin, tokenizer_control_mixin, tokenizer_manager
    return SimpleNamespace(
        io_struct=io_struct,
        manager=tokenizer_manager,
        mixin=tokenizer_control_mixin,
        multi=multi_tokenizer_mixin,
        engine=engine,
    )


class Step(NamedTuple):
    """A call: of Engine's method, or of the worker's method that takes such a request (or plain arguments)."""

    name: str
    arguments: dict[str, Any]
    request: str | None = None
    stock_only: bool = False
    """The shard's method of the step before does this by itself."""


GROUP = {
    "master_address": "10.0.0.1",
    "master_port": 29500,
    "rank_offset": 1,
    "world_size": 3,
    "group_name": "trainer",
    "backend": "gloo",
}
DISTRIBUTED = {"names": ["a.weight", "b"], "dtypes": ["bfloat16", "float32"], "shapes": [[2, 3], [4]]}
PAYLOADS = {"load_format": "flattened_bucket"}
OPTIONS = {"weight_version": "v2", "abort_all_requests": True, "torch_empty_cache": True}
FROM_DISK = {
    **OPTIONS,
    "is_async": True,
    "keep_pause": True,
    "recapture_cuda_graph": True,
    "token_step": 7,
    "flush_cache": False,
    "manifest": {"a": [1, {"b": None}]},
}
PROFILE = {
    "output_dir": "/tmp/traces",
    "start_step": 3,
    "num_steps": 5,
    "activities": ["CPU", "GPU"],
    "profile_by_stage": True,
    "with_stack": False,
    "record_shapes": False,
    "profile_id": "mine",
    "merge_profiles": True,
    "profile_prefix": "p",
    "profile_stages": ["decode"],
    "detailed_annotations": True,
}
LORA = {"lora_name": "poet", "lora_path": "/adapters/poet"}
LORA_TENSORS = {"lora_name": "bard", "tensors": [b"\0serialized\xff"], "config_dict": {"r": 8, "bias": None}}

BEHIND = Step("get_internal_state", {}, "arguments", stock_only=True)
"""How a shard's pause and continue end: the answer says that the engine has done what nothing answers."""

CASES: dict[str, list[Step]] = {
    "flush_cache": [Step("flush_cache", {}), Step("flush_cache", {"timeout_s": 0.5}, "arguments")],
    "sessions": [
        Step("open_session", {"capacity_of_str_len": 1000}),
        Step("open_session", {"capacity_of_str_len": 5, "session_id": "mine", "streaming": True, "timeout": 30.5}),
        Step("close_session", {"session_id": "mine"}),
    ],
    "start_profile": [Step("start_profile", {}), Step("stop_profile", {})],
    "start_profile, everything": [Step("start_profile", PROFILE)],
    "expert distribution": [
        Step("start_expert_distribution_record", {}),
        Step("stop_expert_distribution_record", {}),
        Step("dump_expert_distribution_record", {}),
    ],
    "get_internal_state": [Step("get_internal_state", {}, "arguments")],
    "get_server_info": [Step("get_server_info", {})],
    "weights update group": [
        Step("init_weights_update_group", GROUP),
        Step("destroy_weights_update_group", {"group_name": "trainer"}),
    ],
    "weights update group, defaults": [
        Step("init_weights_update_group", {k: v for k, v in GROUP.items() if k != "backend"}),
    ],
    "weight update": [
        Step("begin_weight_update", {}),
        Step("end_weight_update", {}),
        Step("begin_weight_update", {"selector": "draft"}),
        Step("end_weight_update", {}),
    ],
    "update_weights_from_distributed": [
        Step("update_weights_from_distributed", DISTRIBUTED),
        Step(
            "update_weights_from_distributed",
            {**DISTRIBUTED, "group_name": "trainer", "flush_cache": False, "load_format": "flattened_bucket"},
        ),
        Step(
            "update_weights_from_distributed",
            {**DISTRIBUTED, **OPTIONS, "selector": "target"},
            "UpdateWeightsFromDistributedReqInput",
        ),
    ],
    "update_weights_from_tensor": [
        Step("update_weights_from_tensor", {"named_tensors": [b"\0one\xff"], **PAYLOADS}),
        Step("update_weights_from_tensor", {"named_tensors": ["AG9uZf8="], **PAYLOADS, "flush_cache": False}),
    ],
    "update_weights_from_disk": [
        Step("update_weights_from_disk", {"model_path": "/models/new"}),
        Step("update_weights_from_disk", {"model_path": "/models/newer", "load_format": "safetensors"}),
        Step("update_weights_from_disk", {"model_path": "/m", **FROM_DISK}, "UpdateWeightFromDiskReqInput"),
    ],
    "update_weights_from_ipc": [
        Step("update_weights_from_ipc", {"zmq_handles": {"GPU-0": "ipc:///gpu0"}}),
        Step("update_weights_from_ipc", {"zmq_handles": {"GPU-1": "ipc:///gpu1"}, "flush_cache": False}),
        Step(
            "update_weights_from_ipc",
            {"zmq_handles": {"GPU-0": "ipc:///g"}, "weight_version": "v9", "torch_empty_cache": True},
            "UpdateWeightsFromIPCReqInput",
        ),
    ],
    "update_weight_version": [
        Step("update_weight_version", {"new_version": "v7"}, "UpdateWeightVersionReqInput"),
        Step(
            "update_weight_version", {"new_version": "v8", "abort_all_requests": False}, "UpdateWeightVersionReqInput"
        ),
    ],
    "get_weights_by_name": [
        Step("get_weights_by_name", {"name": "lm_head.weight"}),
        Step("get_weights_by_name", {"name": "no.such", "truncate_size": 3}),
    ],
    "lora": [
        Step("load_lora_adapter", LORA),
        Step("unload_lora_adapter", {"lora_name": "poet"}),
        Step("load_lora_adapter", {**LORA, "pinned": True}),
        Step("load_lora_adapter_from_tensors", {**LORA_TENSORS, **PAYLOADS}),
        Step("unload_lora_adapter", {"lora_name": "bard"}),
    ],
    "memory": [
        Step("release_memory_occupation", {}),
        Step("resume_memory_occupation", {}),
        Step("release_memory_occupation", {"tags": ["kv_cache", "weights"]}),
        Step("resume_memory_occupation", {"tags": ["weights", "kv_cache"]}),
    ],
    "freeze_gc": [Step("freeze_gc", {})],
    "pause": [
        Step("pause_generation", {"mode": "in_place"}, "PauseGenerationReqInput"),
        BEHIND,
        Step("continue_generation", {}, "ContinueGenerationReqInput"),
        BEHIND,
        Step("pause_generation", {"mode": "retract"}, "PauseGenerationReqInput"),
        BEHIND,
        Step("continue_generation", {"torch_empty_cache": False}, "ContinueGenerationReqInput"),
        BEHIND,
        Step("pause_generation", {}, "PauseGenerationReqInput"),
        BEHIND,
        Step("continue_generation", {}, "ContinueGenerationReqInput"),
        BEHIND,
    ],
}
"""What is called, in this order, on both, but for what only SGLang's has to be asked for."""

ABORTS = ("abort", "abort_local")
"""What ends one request: compared apart, for the engine knows it by a rid of the shard's own."""

NO_MESSAGES = {
    "generate", "encode", "rerank", "score", "submit", "embed", "embed_parts", "health_generate", "fail_all",
    "adapters", "kv_events", "get_model_info", "get_loads", "serialize_tensors", "shards", "until_draining",
    "change_alone", "collective_rpc", "embed_there", "save_remote_model", "save_sharded_model",
}  # fmt: skip
"""What sends requests or ends what it has sent, asks nobody, or goes through the engine's own process."""


@pytest.mark.parametrize("case", CASES)
def test_messages_are_those_of_sglangs_own_worker(
    srt: Any, case: str, codec: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wire = Wire(srt.io_struct, codec)
    with StockEngine(srt, wire, monkeypatch) as stock:
        for step in CASES[case]:
            stock.call(step.name, step.arguments, step.request)
    ours = [wire.decode(frame) for frame in frames_of(case, codec, tmp_path, monkeypatch)]
    assert [type(message).__name__ for message in ours] == [type(message).__name__ for message in stock.sent]
    assert Comparable().all(ours) == Comparable().all(stock.sent)
    assert {message.http_worker_ipc for message in stock.sent} == {ENDPOINT}
    assert {message.http_worker_ipc for message in ours} == {f"ipc://{tmp_path}/shard-0.ipc"}


def frames_of(case: str, codec: str, directory: Path, monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """What a shard sends for the same calls, but for its registration."""
    frames = kept_frames(monkeypatch)

    async def calls() -> None:
        async with shard_of(simulated) as shard, asyncio.timeout(30):
            frames.clear()
            for step in (step for step in CASES[case] if not step.stock_only):
                await getattr(shard.engine, f"async_{step.name}")(**step.arguments)

    features = {"enable_lora": True, "enable_streaming_session": True}
    simulated = SimulatedEngine(directory, codec=codec, features=features)
    simulated.contract.server_args.update(
        load_format="auto", gc_threshold=[700, 10, 10], expert_distribution_recorder_mode="stat"
    )
    with simulated:
        asyncio.run(calls())
        assert simulated.violations == []
        assert simulated.router_alive()
    return frames


def kept_frames(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Grows with everything that shards send from now on."""
    frames: list[bytes] = []
    send = WorkerSocket.send

    def keep(self: WorkerSocket, frame: bytes) -> None:
        frames.append(frame)
        send(self, frame)

    monkeypatch.setattr(WorkerSocket, "send", keep)
    return frames


@pytest.mark.parametrize("name", ABORTS)
def test_the_abort_of_one_request_is_that_of_sglangs_own_worker(
    srt: Any, name: str, codec: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    frames = kept_frames(monkeypatch)

    async def call() -> list[bytes]:
        async with shard_of(simulated) as shard, asyncio.timeout(30):
            outputs = await shard.engine.async_generate("abc", {"max_new_tokens": 4000}, stream=True, rid="mine")
            await anext(outputs)
            frames.clear()
            abort = getattr(shard.engine, name)
            # Of what is ending already, or isn't anywhere, or has no name, the engine hears nothing.
            assert [abort(rid) for rid in ("mine", "mine", "other", "")] == [True, True, False, False]
            sent = frames.copy()
            assert [output async for output in outputs][-1]["meta_info"]["finish_reason"]["type"] == "abort"
            return sent

    with SimulatedEngine(tmp_path, codec=codec, step_seconds=0.005) as simulated:
        sent = asyncio.run(call())
        [rid] = [request.rid for request in simulated.requests()]
        assert simulated.violations == []
    assert rid != "mine"
    compare_aborts(srt, codec, sent, {"rid": rid}, monkeypatch)


def test_the_abort_of_all_requests_is_that_of_sglangs_own_worker(
    srt: Any, codec: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    frames = kept_frames(monkeypatch)

    async def call() -> list[bytes]:
        async with shard_of(simulated) as shard:
            frames.clear()
            assert shard.engine.abort(abort_all=True)
            return frames.copy()

    with SimulatedEngine(tmp_path, codec=codec) as simulated:
        sent = asyncio.run(call())
        assert simulated.violations == []
    compare_aborts(srt, codec, sent, {"abort_all": True}, monkeypatch)


def compare_aborts(
    srt: Any, codec: str, sent: list[bytes], arguments: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One message was sent, and SGLang's own worker sends the same."""
    wire = Wire(srt.io_struct, codec)
    with StockEngine(srt, wire, monkeypatch) as stock:
        stock.worker.abort_request(**arguments)
    [ours], [expected] = [wire.decode(frame) for frame in sent], stock.sent
    assert type(ours) is type(expected) is srt.io_struct.AbortReq
    assert Comparable().all([ours]) == Comparable().all([expected])
    assert ours.http_worker_ipc.endswith("/shard-0.ipc")


class Comparable:
    """Messages as plain values with their types; what is made up anew each time, by the order in which it came."""

    MADE_UP = re.compile(r"[0-9a-f]{32}|\d{10}\.\d+")

    def __init__(self) -> None:
        self._seen: dict[str, str] = {}

    def all(self, messages: list[Any]) -> list[Any]:
        return [self._plain({**msgspec.structs.asdict(message), "http_worker_ipc": ""}) for message in messages]

    def _plain(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {key: self._plain(item) for key, item in value.items()}
        if isinstance(value, list):
            return [self._plain(item) for item in value]
        if isinstance(value, str) and self.MADE_UP.fullmatch(value):
            value = self._seen.setdefault(value, f"made up {len(self._seen)}")
        return type(value).__name__, value


def test_every_method_is_compared() -> None:
    public = [name for name in dir(ShardEngine) if name[0] != "_" and callable(getattr(ShardEngine, name))]
    methods = {name.removeprefix("async_") for name in public}
    compared = {step.name for steps in CASES.values() for step in steps} | {*ABORTS}
    assert methods - compared - NO_MESSAGES == set()
    assert NO_MESSAGES - methods == compared & NO_MESSAGES == set(), "an exclusion that excludes nothing"


def test_every_kind_of_message_is_compared(srt: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wire = Wire(srt.io_struct, "pickle")
    with StockEngine(srt, wire, monkeypatch) as stock:
        for steps in CASES.values():
            for step in steps:
                stock.call(step.name, step.arguments, step.request)
    assert set(CONTROL) - {type(message).__name__ for message in stock.sent} == set()


RPC = [
    ("collective_rpc", {"method": "save_sharded_model", "path": "/p", "pattern": None, "max_size": 1 << 30}),
    ("save_sharded_model", {"path": "/p", "pattern": "x", "max_size": None}),
    ("save_remote_model", {"url": "redis://store"}),
]


@pytest.mark.parametrize(("name", "arguments"), RPC)
def test_rpc_is_that_of_sglangs_engine(
    srt: Any, name: str, arguments: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with StockEngine(srt, Wire(srt.io_struct, "pickle"), monkeypatch) as stock:
        stock.call(name, arguments, None)
    [expected] = stock.sent

    async def call() -> None:
        async with shard_of(simulated) as shard, asyncio.timeout(30):
            await getattr(shard.engine, f"async_{name}")(**arguments)

    with SimulatedEngine(tmp_path) as simulated:
        asyncio.run(call())
        asked = simulated.engine_side.asked
    assert asked == [("collective_rpc", {"method": expected.method, "parameters": expected.parameters})]
