"""The simulated scheduler's control plane: what SGLang's own answers, and what ends it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from sglang_subgw.simulated import SimulatedEngine
from sglang_subgw.simulated.control.plane import answer_kind
from sglang_subgw.simulated.model import PARAMETERS, digest
from sglang_subgw.simulated.wire.checks import UNANSWERED
from sglang_subgw.simulated.wire.schema import structs
from sglang_subgw.simulated.wire.structs import make, member
from support.worker import PlainWorker, text_of

type MakeEngine = Callable[..., SimulatedEngine]

IO = "sglang.srt.managers.io_struct"
START, STOP = (member(f"{IO}.ProfileReqType", value) for value in (1, 2))
GROUP = {"master_address": "127.0.0.1", "master_port": 1, "rank_offset": 1, "world_size": 2}
TENSOR = {"names": ["w"], "dtypes": ["float32"], "shapes": [[2, 2]]}


class Worker(PlainWorker):
    """Gives texts, and the pairs that most answers are."""

    def text(self, rid: str, prompt: str = "ab", **fields: Any) -> str:
        self.generate(rid, prompt, **fields)
        return text_of(self.collect(rid)[rid])

    def outcome(self, kind: str, **fields: Any) -> tuple[bool, str]:
        answer = self.ask(kind, **fields)
        return answer.success, answer.message

    def tell(self, kind: str, **fields: Any) -> None:
        """Send a message that nobody answers."""
        self.send(kind, http_worker_ipc=self.endpoint, **fields)

    def lora(self, name: str, path: str, lora_id: str, **fields: Any) -> Any:
        kind = "LoadLoRAAdapterReqInput"
        return self.ask(kind, lora_name=name, lora_path=path, lora_id=lora_id, **fields)


@pytest.fixture
def lora_engine(make_engine: MakeEngine, codec: str) -> SimulatedEngine:
    return make_engine(codec=codec, features={"enable_lora": True})


@pytest.fixture
def worker(engine: SimulatedEngine) -> Iterator[Worker]:
    with Worker(engine.contract) as plain:
        yield plain
    assert engine.violations == []
    assert engine.router_alive()


def dead(engine: SimulatedEngine, what: str) -> bool:
    """The engine ends with a reason that says it."""
    died = engine.wait_for(lambda: bool(engine.death_reason))
    return died and what in engine.death_reason and what in engine.violations[-1]


def test_everything_is_kept_as_it_came(engine: SimulatedEngine, worker: Worker):
    worker.ask("FlushCacheReqInput", timeout_s=1.0)
    worker.ask("ProfileReq", req_type=START, activities=["CPU"])
    [flush, profile] = engine.control.received
    assert flush == ("FlushCacheReqInput", {"rid": None, "http_worker_ipc": worker.endpoint, "timeout_s": 1.0})
    assert profile[1]["req_type"] == 1
    assert profile[1]["activities"] == ["CPU"]
    assert engine.control.messages("ProfileReq") == [profile[1]]


def test_one_answer_per_rank(make_engine: MakeEngine, codec: str):
    engine = make_engine(codec=codec, features={"num_dp_ranks": 3})
    with Worker(engine.contract) as worker:
        states = [worker.ask("GetInternalStateReq"), worker.receive(), worker.receive()]
        assert [state.internal_state["last_gen_throughput"] for state in states] == [0.0, 1.0, 2.0]
        checks = [worker.ask("CheckWeightsReqInput"), worker.receive(), worker.receive()]
        assert len(checks) == 3
        engine.control.fail("FlushCacheReqInput", "not here", rank=1)
        flushes = [worker.ask("FlushCacheReqInput"), worker.receive(), worker.receive()]
        assert [flush.success for flush in flushes] == [True, False, True]
        assert worker.text("r", routed_dp_rank=2, max_new_tokens=2) == "ab"
        worker.generate("s", "ab", routed_dp_rank=3)
        assert dead(engine, "DP rank 3 is not active.")


# LoRA.


def test_an_adapter_answers_from_its_load_to_its_unload(lora_engine: SimulatedEngine):
    with Worker(lora_engine.contract) as worker:
        loaded = worker.lora("poet", "/adapters/poet", "id1")
        assert (loaded.success, loaded.error_message) == (True, "")
        assert loaded.loaded_adapters == {"poet": "/adapters/poet"} == lora_engine.control.adapters.loaded
        assert worker.text("r1", lora_id="id1") == "[poet]ab"
        assert worker.text("r2") == "abababab"
        assert worker.lora("other", "/elsewhere/clerk", "id2").loaded_adapters.keys() == {"poet", "other"}
        assert worker.text("r3", lora_id="id2") == "[clerk]a"
        left = worker.ask("UnloadLoRAAdapterReqInput", lora_name="poet", lora_id="id1")
        assert left.loaded_adapters == {"other": "/elsewhere/clerk"}
        assert lora_engine.violations == []
        worker.text("r4", lora_id="id1")
    assert lora_engine.violations == ["rid r4 has lora_id id1, which isn't loaded"]


def test_adapters_that_are_refused(lora_engine: SimulatedEngine):
    with Worker(lora_engine.contract) as worker:
        worker.lora("poet", "/adapters/poet", "id1")
        again = worker.lora("poet", "/adapters/poet2", "id2")
        assert again.success is False
        assert again.error_message == "Failed to load LoRA adapter poet because it is already loaded"
        assert again.loaded_adapters == {"poet": "/adapters/poet"}
        nowhere = worker.lora("ghost", "/missing/ghost", "id3")
        assert (nowhere.success, "/missing/ghost" in nowhere.error_message) == (False, True)
        for number in range(7):
            assert worker.lora(f"pin{number}", f"/pin{number}", f"pin{number}", pinned=True).success
        assert "as a pinned adapter" in worker.lora("pin8", "/pin8", "pin8", pinned=True).error_message
        lora_engine.control.fail("LoadLoRAAdapterReqInput", "no memory")
        assert worker.lora("poor", "/poor", "id4").error_message == "no memory"
        assert worker.lora("poor", "/poor", "id4").success
    assert lora_engine.violations == []


def test_an_adapter_from_tensors(lora_engine: SimulatedEngine):
    with Worker(lora_engine.contract) as worker:
        fields = {"config_dict": {"r": 8}, "serialized_named_tensors": [b"\x80\x04."], "lora_id": "id1"}
        loaded = worker.ask("LoadLoRAAdapterFromTensorsReqInput", lora_name="poet", **fields)
        assert loaded.loaded_adapters == {"poet": "__tensor__"}
        mark = digest(b"\x80\x04.".hex(), {"r": 8})
        assert worker.text("r", lora_id="id1", max_new_tokens=12) == f"[{mark}]ab"


def test_unloading_an_adapter_in_use_is_a_violation(make_engine: MakeEngine):
    engine = make_engine(features={"enable_lora": True})
    with Worker(engine.contract) as worker:
        worker.lora("poet", "/adapters/poet", "id1")
        engine.set_faults(stall=True)
        worker.generate("r", "ab", lora_id="id1")
        assert engine.wait_for(lambda: engine.running() == 1)
        worker.ask("UnloadLoRAAdapterReqInput", lora_name="poet", lora_id="id1")
    assert engine.violations == ["poet is unloaded while r use it"]


@pytest.mark.parametrize(
    ("lora", "fields", "reason"),
    [
        (False, {"lora_id": "id1"}, "no attribute 'load_lora_adapter'"),
        (True, {"lora_id": None}, "lora_id cannot be None"),
        (True, {"lora_id": "there"}, "LoRA adapter with ID there is already loaded"),
    ],
)
def test_a_load_that_ends_the_scheduler(make_engine: MakeEngine, lora: bool, fields: dict[str, Any], reason: str):
    engine = make_engine(features={"enable_lora": lora})
    with Worker(engine.contract) as worker:
        if lora:
            worker.lora("first", "/first", "there")
        worker.tell("LoadLoRAAdapterReqInput", lora_name="poet", lora_path="/poet", **fields)
        assert dead(engine, reason)


# Sessions.


def session(name: str, **fields: Any) -> Any:
    return make("SessionParams", id=name, **fields)


def test_a_session_goes_on_from_a_request_of_it(engine: SimulatedEngine, worker: Worker):
    opened = worker.ask("OpenSessionReqInput", capacity_of_str_len=9, session_id="s")
    assert (opened.session_id, opened.success) == ("s", True)
    assert worker.ask("OpenSessionReqInput", capacity_of_str_len=9, session_id="s").success is False
    assert worker.text("r1", "ab", session_params=session("s"), max_new_tokens=2) == "ab"
    assert worker.text("r2", "cd", session_params=session("s", rid="r1"), max_new_tokens=6) == "ababcd"
    assert worker.text("r3", "e", session_params=session("s", rid="r1", offset=1), max_new_tokens=2) == "ae"
    without = session("s", rid="r1", drop_previous_output=True)
    assert worker.text("r4", "e", session_params=without, max_new_tokens=3) == "abe"
    assert list(engine.control.sessions) == ["s"]
    worker.generate("r5", "x", session_params=session("s", rid="nobody"))
    assert worker.collect("r5")["r5"][-1]["finished_reasons"]["message"] == "Invalid request session id"
    worker.tell("CloseSessionReqInput", session_id="s")
    worker.tell("CloseSessionReqInput", session_id="never there")
    worker.generate("r6", "x", session_params=session("s"))
    reason = worker.collect("r6")["r6"][-1]["finished_reasons"]
    assert (reason["message"], reason["status_code"]) == ("Invalid request: session id s does not exist", 400)


def test_a_request_of_a_session_can_be_replaced(make_engine: MakeEngine):
    engine = make_engine()
    with Worker(engine.contract) as worker:
        worker.ask("OpenSessionReqInput", capacity_of_str_len=9, session_id="s")
        worker.text("r1", "ab", session_params=session("s"), max_new_tokens=2)
        engine.set_faults(stall=True)
        worker.generate("r2", "cd", session_params=session("s", rid="r1"))
        worker.generate("r3", "x", session_params=session("s", rid="r2"))
        worker.generate("r4", "ef", session_params=session("s", rid="r1", replace=True), max_new_tokens=6)
        assert engine.wait_for(lambda: engine.running() == 3)
        engine.set_faults(stall=False)
        chunks = worker.collect("r2", "r3", "r4")
    assert chunks["r2"][-1]["finished_reasons"]["type"] == "abort"
    assert "hasn't finished" in chunks["r3"][-1]["finished_reasons"]["message"]
    assert text_of(chunks["r4"]) == "ababef"


def test_a_streaming_session_takes_one_request_at_a_time(make_engine: MakeEngine):
    engine = make_engine()
    with Worker(engine.contract) as worker:
        worker.ask("OpenSessionReqInput", capacity_of_str_len=9, session_id="s", streaming=True)
        worker.text("r1", "ab", session_params=session("s"), max_new_tokens=2)
        engine.set_faults(stall=True)
        worker.generate("r2", "c", session_params=session("s"), max_new_tokens=5)
        worker.generate("r3", "d", session_params=session("s"))
        worker.tell("CloseSessionReqInput", session_id="s")
        assert engine.wait_for(lambda: len(engine.control.received) == 2)
        assert "s" in engine.control.sessions
        engine.set_faults(stall=False)
        chunks = worker.collect("r2", "r3")
        assert text_of(chunks["r2"]) == "ababc"
        assert "already has an active request" in chunks["r3"][-1]["finished_reasons"]["message"]
        assert engine.wait_for(lambda: "s" not in engine.control.sessions)


def test_a_session_that_is_idle_too_long_is_closed(make_engine: MakeEngine):
    engine = make_engine()
    with Worker(engine.contract) as worker:
        worker.ask("OpenSessionReqInput", capacity_of_str_len=9, session_id="s", timeout=1e-9)
        worker.ask("FlushCacheReqInput")
        assert list(engine.control.sessions) == []


# Pauses.


@pytest.mark.parametrize(("mode", "flushed"), [("in_place", False), ("retract", True)])
def test_pauses(make_engine: MakeEngine, codec: str, mode: str, flushed: bool):
    engine = make_engine(codec=codec, step_seconds=0.01)
    with Worker(engine.contract) as worker:
        worker.generate("r", "ab", max_new_tokens=6)
        worker.receive()
        worker.tell("PauseGenerationReqInput", mode=mode)
        assert engine.wait_for(lambda: engine.paused)
        steps = engine.steps
        flush = worker.ask("FlushCacheReqInput")
        while flush.__struct_name__ == "BatchStrOutput":
            flush = worker.receive()
        assert flush.success is flushed
        assert engine.steps == steps
        worker.tell("ContinueGenerationReqInput")
        end = worker.collect("r")["r"][-1]
        assert end["finished_reasons"] == {"type": "length", "length": 6}
        assert end["retraction_counts"] == (mode == "retract")
    assert engine.violations == []


def test_retracted_requests_wait_behind_what_waits(make_engine: MakeEngine):
    engine = make_engine(step_seconds=0.01, max_running=1)
    with Worker(engine.contract) as worker:
        worker.generate("first", "ab", max_new_tokens=50)
        worker.generate("second", "cd", max_new_tokens=2)
        worker.receive()
        worker.tell("PauseGenerationReqInput", mode="retract")
        worker.tell("ContinueGenerationReqInput")
        order = [worker.receive() for _ in range(2)]
        while order[-1].finished_reasons == [None]:
            order.append(worker.receive())
        assert order[-1].rids == ["second"]
        worker.tell("AbortReq", abort_all=True)
        worker.collect("first")


# Weights.


def test_weights_from_disk_answer_and_are_named(engine: SimulatedEngine, worker: Worker):
    kind = "UpdateWeightFromDiskReqInput"
    assert worker.outcome(kind, model_path="/models/new", load_format="auto", weight_version="v2") == (
        True,
        "Succeeded to update model weights.",
    )
    worker.generate("r", "ab")
    chunks = worker.collect("r")["r"]
    assert text_of(chunks) == "[new]aba"
    assert [span.version for span in chunks[-1]["weight_versions"]] == ["v2"]
    assert worker.outcome(kind, model_path="/missing/model", load_format="auto")[0] is False
    assert "Unknown load_format" in worker.outcome(kind, model_path="/models/new")[1]
    assert engine.control.model.weights == "new"
    assert worker.outcome(kind, model_path="simulated-model", load_format="auto")[0]
    assert worker.text("s") == "abababab"


def test_weights_that_change_while_a_request_is_paused(make_engine: MakeEngine):
    engine = make_engine(step_seconds=0.005)
    with Worker(engine.contract) as worker:
        worker.generate("r", "ab", max_new_tokens=12)
        worker.receive()
        worker.tell("PauseGenerationReqInput", mode="in_place")
        assert engine.wait_for(lambda: engine.paused)
        worker.tell("UpdateWeightFromDiskReqInput", model_path="/new", load_format="auto", weight_version="v2")
        answer = worker.receive()
        while answer.__struct_name__ == "BatchStrOutput":
            answer = worker.receive()
        assert answer.success is False
        assert answer.message.startswith("Weights were updated, but the cache was not flushed")
        worker.tell("ContinueGenerationReqInput")
        end = worker.collect("r")["r"][-1]
        [old, new] = [(span.version, span.start, span.end) for span in end["weight_versions"]]
        assert old[:2] == ("default", 0)
        assert new == ("v2", old[2], 12)


def test_tensors_come_within_a_session(engine: SimulatedEngine, worker: Worker):
    tensors = {"serialized_named_tensors": [b"tensors"]}
    assert worker.outcome("EndWeightUpdateReqInput")[0] is False
    refused = worker.outcome("UpdateWeightsFromTensorReqInput", **tensors)
    assert refused == (
        False,
        "update_weights_from_tensor must run between begin_weight_update() and end_weight_update()",
    )
    assert worker.outcome("BeginWeightUpdateReqInput") == (True, "Success")
    assert worker.outcome("BeginWeightUpdateReqInput")[0] is False
    assert worker.outcome("UpdateWeightsFromTensorReqInput", **tensors) == (True, "Success")
    assert engine.control.weights.updating
    assert worker.outcome("EndWeightUpdateReqInput") == (True, "Success")
    assert worker.text("r", max_new_tokens=12) == f"[{digest(b'tensors'.hex())}]ab"


def test_weights_from_a_group(engine: SimulatedEngine, worker: Worker):
    kind = "UpdateWeightsFromDistributedReqInput"
    assert worker.outcome(kind, **TENSOR)[0] is False
    worker.ask("BeginWeightUpdateReqInput")
    assert "Please call `init_weights_update_group` first" in worker.outcome(kind, **TENSOR)[1]
    assert worker.outcome("InitWeightsUpdateGroupReqInput", **GROUP)[0]
    assert worker.outcome(kind, **{**TENSOR, "dtypes": ["float33"]})[0] is False
    assert worker.outcome(kind, **TENSOR, weight_version="v3")[0]
    assert engine.control.groups.receiving == {"weight_update_group"}
    assert worker.outcome("DestroyWeightsUpdateGroupReqInput")[0]
    assert worker.outcome("DestroyWeightsUpdateGroupReqInput") == (
        False,
        "The group to be destroyed does not exist.",
    )
    ipc = {"zmq_handles": {"GPU-0": "ipc:///x"}}
    assert worker.outcome("UpdateWeightsFromIPCReqInput", **ipc)[0]
    assert engine.control.model.weights == digest(sorted(ipc["zmq_handles"].items()))


def test_what_can_be_asked_of_weights(engine: SimulatedEngine, worker: Worker):
    rows = worker.ask("GetWeightsByNameReqInput", name=PARAMETERS[0], truncate_size=3).parameter
    assert [len(row) for row in rows] == [4] * 3
    assert worker.ask("GetWeightsByNameReqInput", name="no.such.weight").parameter is None
    first = worker.ask("CheckWeightsReqInput", skip_tensor_list=["norm"])
    assert first.success
    assert worker.outcome("CheckWeightsReqInput", action="snapshot")[0]
    assert worker.outcome("CheckWeightsReqInput", action="reset_tensors")[0]
    assert worker.outcome("CheckWeightsReqInput", action="compare")[0] is False
    assert worker.outcome("CheckWeightsReqInput", action="tickle")[0] is False
    assert worker.ask("GetWeightsByNameReqInput", name=PARAMETERS[0], truncate_size=3).parameter != rows
    assert worker.ask("UpdateWeightVersionReqInput", new_version="v9").__struct_name__.endswith("VersionReqOutput")
    worker.generate("r", "ab")
    assert worker.collect("r")["r"][-1]["weight_versions"][0].version == "v9"


@pytest.mark.parametrize(
    ("kind", "fields", "reason"),
    [
        ("UpdateWeightFromDiskReqInput", {"model_path": "/m", "load_format": "odd"}, "not a valid LoadFormat"),
        ("UpdateWeightsFromTensorReqInput", {"serialized_named_tensors": []}, "IndexError"),
        (
            "UpdateWeightsFromTensorReqInput",
            {"serialized_named_tensors": [b"t"], "load_format": "odd"},
            "Unknown load_format=odd",
        ),
        ("InitWeightsUpdateGroupReqInput", {**GROUP, "group_name": ""}, "Group name cannot be empty"),
        ("SendWeightsToRemoteInstanceReqInput", {"master_address": "h", "ports": "1"}, "KeyError"),
        ("ResumeMemoryOccupationReqInput", {}, "KeyError"),
        ("ScaleElasticEPReqInput", {"new_ep_size": 2}, "Elastic EP state is not initialized"),
        ("ConfigureLoggingReq", {"log_level": "loud"}, "Unknown level"),
        (
            "ExpertDistributionReq",
            {"action": member(f"{IO}.ExpertDistributionReqType", 1)},
            "expert_distribution_recorder_mode",
        ),
        ("RpcReqInput", {"method": "save_sharded_model"}, "Invalid object"),
    ],
)
def test_messages_that_end_the_scheduler(make_engine: MakeEngine, kind: str, fields: dict[str, Any], reason: str):
    engine = make_engine()
    with Worker(engine.contract) as worker:
        worker.ask("BeginWeightUpdateReqInput")
        worker.tell(kind, **fields)
        assert dead(engine, reason)


# Memory, profiles, state.


def test_memory_is_released_while_nothing_runs(engine: SimulatedEngine, worker: Worker):
    worker.ask("ReleaseMemoryOccupationReqInput", tags=["kv_cache"])
    assert engine.control.memory.released == {"kv_cache"}
    worker.ask("ReleaseMemoryOccupationReqInput", tags=["weights"])
    worker.ask("ResumeMemoryOccupationReqInput", tags=["kv_cache", "weights"])
    worker.ask("ReleaseMemoryOccupationReqInput")
    worker.ask("ResumeMemoryOccupationReqInput")
    assert engine.control.memory.released == set()
    assert worker.text("r") == "abababab"


def test_memory_released_while_something_runs_ends_the_scheduler(make_engine: MakeEngine):
    engine = make_engine(step_seconds=0.01)
    with Worker(engine.contract) as worker:
        worker.generate("r", "ab", max_new_tokens=500)
        worker.receive()
        worker.tell("ReleaseMemoryOccupationReqInput")
        assert dead(engine, "should be called only when server is idle")


def test_a_request_without_its_memory_ends_the_scheduler(make_engine: MakeEngine):
    engine = make_engine()
    with Worker(engine.contract) as worker:
        worker.ask("ReleaseMemoryOccupationReqInput", tags=["weights"])
        worker.generate("r", "ab")
        assert dead(engine, "a step without the memory of weights")


def test_profiles(engine: SimulatedEngine, worker: Worker):
    assert worker.outcome("ProfileReq", req_type=STOP)[0] is False
    assert worker.outcome("ProfileReq", profile_id="p1") == (True, "Succeeded")
    assert worker.outcome("ProfileReq")[0] is False
    assert engine.control.profiling.running is not None
    assert worker.outcome("ProfileReq", req_type=STOP)[0]
    assert [profile["profile_id"] for profile in engine.control.profiling.done] == ["p1"]


def test_a_profile_of_some_steps_ends_by_itself(make_engine: MakeEngine):
    engine = make_engine()
    with Worker(engine.contract) as worker:
        worker.ask("ProfileReq", start_step=3, num_steps=2)
        worker.text("r", max_new_tokens=2)
        assert engine.control.profiling.running is None
        worker.text("s", max_new_tokens=6)
        assert engine.wait_for(lambda: len(engine.control.profiling.done) == 1)


def test_expert_distribution(make_engine: MakeEngine, codec: str):
    engine = make_engine(codec=codec)
    engine.contract.server_args["expert_distribution_recorder_mode"] = "stat"
    with Worker(engine.contract) as worker:
        for value, recording in ((1, True), (3, True), (2, False)):
            worker.ask("ExpertDistributionReq", action=member(f"{IO}.ExpertDistributionReqType", value))
            assert engine.control.experts.recording is recording
    assert engine.control.experts.dumps == 1
    assert engine.violations == []


def test_a_plain_number_is_no_member_of_an_enumeration(make_engine: MakeEngine):
    """With pickle SGLang would take it for another member: no value of its own equals a number."""
    engine = make_engine()
    with Worker(engine.contract) as worker:
        worker.tell("ProfileReq", req_type=1)
        assert engine.wait_for(lambda: bool(engine.violations))
    assert "ProfileReq.req_type: 1 is no" in engine.violations[0]


def test_state_is_read_and_set(engine: SimulatedEngine, worker: Worker):
    assert worker.ask("SetInternalStateReq", server_args={"pp_max_micro_batch_size": 4}).updated
    assert worker.ask("SetInternalStateReq", server_args={"pp_max_micro_batch_size": 0}).updated is False
    assert worker.ask("SetInternalStateReq", server_args={"tp_size": 2}).updated is False
    state = worker.ask("GetInternalStateReq").internal_state
    assert state["pp_max_micro_batch_size"] == 4
    assert state["effective_max_running_requests_per_dp"] == 1024
    worker.tell("FreezeGCReq", gc_threshold=[700, 10, 10])
    worker.tell("ConfigureLoggingReq", log_level="info")
    assert worker.ask("SlowDownReqInput", forward_sleep_time=None).__struct_name__ == "SlowDownReqOutput"
    assert engine.control.housekeeping.gc_frozen == [[700, 10, 10]]


OFF = [
    ("ClearHiCacheReqInput", {}),
    ("AttachHiCacheStorageReqInput", {"hicache_storage_backend": "file"}),
    ("DetachHiCacheStorageReqInput", {}),
    ("AddExternalCorpusReqInput", {"corpus_id": "c", "token_chunks": [[1]]}),
    ("RemoveExternalCorpusReqInput", {"corpus_id": "c"}),
    ("ListExternalCorporaReqInput", {}),
    ("PdRoleSwitchReqInput", {"new_role": "decode"}),
    ("DumperControlReqInput", {"method": "get_state", "body": {}}),
]


@pytest.mark.parametrize(("kind", "fields"), OFF)
def test_features_that_are_off_say_so(engine: SimulatedEngine, worker: Worker, kind: str, fields: dict[str, Any]):
    assert worker.ask(kind, **fields).success is False
    assert worker.ask("GetHiCacheL3LayoutReq").layout["enabled"] is False


def test_features_that_are_on(make_engine: MakeEngine):
    engine = make_engine(features={"speculative_algorithm": "NGRAM", "disaggregation_mode": "decode"})
    engine.contract.server_args.update(enable_hierarchical_cache=True, enable_pd_role_switch=True)
    with Worker(engine.contract) as worker:
        for kind, fields in OFF[:-1]:
            assert worker.ask(kind, **fields).success, kind
        assert worker.ask("ListExternalCorporaReqInput").corpus_token_counts == {}
        assert worker.ask("AddExternalCorpusReqInput", **OFF[3][1]).loaded_token_count == 1


def test_a_disaggregated_request_without_a_room_ends_the_scheduler(make_engine: MakeEngine):
    engine = make_engine(features={"disaggregation_mode": "prefill", "disaggregation_transfer_backend": "mooncake"})
    with Worker(engine.contract) as worker:
        assert worker.text("r", bootstrap_room=7, max_new_tokens=2) == "ab"
        worker.generate("s", "ab")
        assert dead(engine, "no attribute 'trace_ctx'")


# How tests meddle.


def test_held_messages_wait_and_others_do_not(make_engine: MakeEngine):
    engine = make_engine()
    with Worker(engine.contract, "one") as one, Worker(engine.contract, "two") as two:
        with engine.control.hold("UpdateWeightVersionReqInput"):
            one.tell("UpdateWeightVersionReqInput", new_version="v1")
            one.tell("UpdateWeightVersionReqInput", new_version="v2")
            assert two.text("r", max_new_tokens=2) == "ab"
            assert two.ask("FlushCacheReqInput").success
            assert len(engine.control.messages("UpdateWeightVersionReqInput")) == 2
        assert [one.receive().__struct_name__ for _ in range(2)] == ["UpdateWeightVersionReqOutput"] * 2
        assert two.ask("GetInternalStateReq").internal_state["weight_version"] == "v2"


def test_delayed_messages_come_late(make_engine: MakeEngine):
    engine = make_engine()
    engine.control.delay("FlushCacheReqInput", 0.1)
    with Worker(engine.contract) as worker:
        order: list[str] = []
        worker.tell("FlushCacheReqInput")
        order.append(worker.ask("GetInternalStateReq").__struct_name__)
        order.append(worker.receive().__struct_name__)
    assert order == ["GetInternalStateReqOutput", "FlushCacheReqOutput"]


def test_failures_are_for_answers_that_can_tell_of_them(make_engine: MakeEngine):
    engine = make_engine()
    with pytest.raises(ValueError, match="ReleaseMemoryOccupationReqOutput has no success"):
        engine.control.fail("ReleaseMemoryOccupationReqInput", "no")
    engine.control.fail("FlushCacheReqInput", "busy", times=2)
    engine.control.fail("OpenSessionReqInput", "")
    with Worker(engine.contract) as worker:
        results = [worker.outcome("FlushCacheReqInput") for _ in range(3)]
        assert worker.ask("OpenSessionReqInput", capacity_of_str_len=1, session_id="s").success is False
    assert results == [(False, "busy"), (False, "busy"), (True, "")]
    assert list(engine.control.sessions) == []


def test_every_message_that_the_schema_has_an_answer_for_is_known(make_engine: MakeEngine):
    engine = make_engine()
    answers = {kind for kind in structs() if kind.endswith("ReqOutput")} | {"LoRAUpdateOutput"}
    elsewhere = {"RpcReqOutput", "SetInjectDumpMetadataReqOutput", "LazyDumpTensorsReqOutput"}
    assert answers - elsewhere == {answer_kind(kind) for kind in engine.control.kinds - UNANSWERED}
