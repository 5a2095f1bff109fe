"""Calls from an application in a shard that are refused, that fail in the engine, and whose answer is whose."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from sglang_subgw.simulated.model import PARAMETERS
from support.calling import DISTRIBUTED, GROUP, PLAIN, SERIALIZED, Caller, ask

WRONG = {
    "a load format": ("update_weights_from_disk", {"model_path": "/m", "load_format": "odd"}, "load_format"),
    "no model path": ("update_weights_from_disk", {"model_path": ""}, "model_path"),
    "an option": ("update_weights_from_disk", {"model_path": "/m", "odd": 1}, "odd"),
    "an option's type": ("update_weights_from_disk", {"model_path": "/m", "token_step": "1"}, "token_step"),
    "no payload": ("update_weights_from_tensor", {"named_tensors": [], **SERIALIZED}, "tensors"),
    "a payload": ("update_weights_from_tensor", {"named_tensors": ["%"], **SERIALIZED}, "base64"),
    "no tensor": ("update_weights_from_tensor", {"named_tensors": [["w", 1]]}, "not a tensor"),
    "a tensors' format": ("update_weights_from_tensor", {"named_tensors": [["w", 1]], "load_format": "odd"}, "odd"),
    "lengths": ("update_weights_from_distributed", {"names": ["w"], "dtypes": [], "shapes": []}, "length"),
    "a shape": ("update_weights_from_distributed", {"names": ["w"], "dtypes": ["int8"], "shapes": [["2"]]}, "shapes"),
    "handles": ("update_weights_from_ipc", {"zmq_handles": {"GPU-0": 1}}, "zmq_handles"),
    "a selector": ("begin_weight_update", {"selector": "some"}, "selector"),
    "no group": ("init_weights_update_group", {**GROUP, "group_name": ""}, "group_name"),
    "a port": ("init_weights_update_group", {**GROUP, "master_port": "29500"}, "master_port"),
    "no group to leave": ("destroy_weights_update_group", {"group_name": ""}, "group_name"),
    "no version": ("update_weight_version", {"new_version": None}, "new_version"),
    "a name": ("get_weights_by_name", {"name": 7}, "name"),
    "a count": ("get_weights_by_name", {"name": "w", "truncate_size": "all"}, "truncate_size"),
    "an adapter's name": ("load_lora_adapter", {"lora_name": "", "lora_path": "/p"}, "lora_name"),
    "an adapter's path": ("load_lora_adapter", {"lora_name": "poet", "lora_path": None}, "lora_path"),
    "a pin": ("load_lora_adapter", {"lora_name": "poet", "lora_path": "/p", "pinned": "yes"}, "pinned"),
    "no adapter": ("unload_lora_adapter", {"lora_name": None}, "lora_name"),
    "a mode of pause": ("pause_generation", {"mode": "soon"}, "mode"),
    "a capacity": ("open_session", {"capacity_of_str_len": "big"}, "capacity_of_str_len"),
    "a session's name": ("open_session", {"capacity_of_str_len": 9, "session_id": 7}, "session_id"),
    "a profile's activities": ("start_profile", {"activities": "CPU"}, "activities"),
    "tags": ("release_memory_occupation", {"tags": "weights"}, "tags"),
    "nothing to resume": ("resume_memory_occupation", {}, "released"),
    "an RPC's parameter": ("collective_rpc", {"method": "m", "a": [1]}, "scalar"),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_a_scheduler_would_end_by_is_refused(call_async: Caller, what: str):
    method, arguments, said = WRONG[what]
    before = len(call_async.control.received)
    message, status = call_async.refusal(method, **arguments)
    assert (status, said in message) == (400, True), message
    assert call_async.texts() == {PLAIN}
    assert len(call_async.control.received) == before


# Answers carry no id: whose is whose.


def test_calls_at_once_from_all_shards_get_their_own_answers(call_async: Caller):
    sizes = range(1, 17)
    kind = "GetWeightsByNameReqInput"
    with call_async.stack.client_per_shard() as others, ThreadPoolExecutor(len(sizes)) as pool:
        clients = [*call_async.clients, *others]
        with call_async.control.hold(kind):
            before = len(call_async.control.messages(kind))
            asked = [
                pool.submit(
                    ask,
                    clients[size % len(clients)],
                    "async_get_weights_by_name",
                    {"name": PARAMETERS[0], "truncate_size": size},
                )
                for size in sizes
            ]
            # One a shard: the next is asked when it is answered.
            assert call_async.stack.engine.wait_for(lambda: len(call_async.control.messages(kind)) == before + 2)
        assert [len(one.result(20)["result"]) for one in asked] == list(sizes)


def test_an_answer_that_was_given_up_is_not_taken_for_the_next_one(call_async: Caller):
    kind = "GetWeightsByNameReqInput"
    client = call_async.clients[0]
    with call_async.control.hold(kind):
        arguments = {"name": PARAMETERS[0], "truncate_size": 5}
        assert ask(client, "async_get_weights_by_name", arguments, within=0.05) == {"given up": 0.05}
    later = ask(client, "async_get_weights_by_name", {"name": PARAMETERS[0], "truncate_size": 7})
    assert len(later["result"]) == 7


FAILING: dict[str, tuple[str, dict[str, Any], Callable[[Any], Any]]] = {
    "FlushCacheReqInput": ("flush_cache", {}, lambda result: (result["success"], result["message"])),
    "InitWeightsUpdateGroupReqInput": ("init_weights_update_group", GROUP, tuple),
    "DestroyWeightsUpdateGroupReqInput": ("destroy_weights_update_group", {"group_name": "g"}, tuple),
    "BeginWeightUpdateReqInput": ("begin_weight_update", {}, tuple),
    "EndWeightUpdateReqInput": ("end_weight_update", {}, tuple),
    "UpdateWeightFromDiskReqInput": (
        "update_weights_from_disk",
        {"model_path": "/m", "weight_version": "v"},
        lambda result: tuple(result[:2]),
    ),
    "UpdateWeightsFromTensorReqInput": (
        "update_weights_from_tensor",
        {"named_tensors": ["AA=="], "weight_version": "v", **SERIALIZED},
        tuple,
    ),
    "UpdateWeightsFromDistributedReqInput": ("update_weights_from_distributed", DISTRIBUTED, tuple),
    "UpdateWeightsFromIPCReqInput": ("update_weights_from_ipc", {"zmq_handles": {}, "weight_version": "v"}, tuple),
    "LoadLoRAAdapterReqInput": (
        "load_lora_adapter",
        {"lora_name": "poet", "lora_path": "/p"},
        lambda result: (result["success"], result["error_message"]),
    ),
    "LoadLoRAAdapterFromTensorsReqInput": (
        "load_lora_adapter_from_tensors",
        {"lora_name": "poet", "tensors": ["AA=="], "config_dict": {}, **SERIALIZED},
        lambda result: (result["success"], result["error_message"]),
    ),
}


@pytest.mark.parametrize("kind", FAILING)
def test_a_failure_of_the_engines_is_in_the_answer(call_async: Caller, kind: str):
    method, arguments, outcome = FAILING[kind]
    call_async.control.fail(kind, "the engine's own words")
    assert outcome(call_async(method, **arguments)) == (False, "the engine's own words")
    assert call_async("get_model_info")["weight_version"] == "default"
    assert call_async.texts() == {PLAIN}


def test_failures_that_raise(call: Caller):
    call.control.fail("ProfileReq", "no profiler here")
    assert call.refusal("start_profile") == ("no profiler here", 400)
    call.control.fail("OpenSessionReqInput", "")
    assert call("open_session", capacity_of_str_len=9) is None


def test_an_unload_that_failed_can_be_tried_again(call: Caller):
    call("load_lora_adapter", lora_name="poet", lora_path="/adapters/poet")
    call.control.fail("UnloadLoRAAdapterReqInput", "busy")
    failed = call("unload_lora_adapter", lora_name="poet")
    assert (failed["success"], failed["error_message"]) == (False, "busy")
    between = call("load_lora_adapter", lora_name="poet", lora_path="/adapters/poet")
    assert (between["success"], "incomplete unload" in between["error_message"]) == (False, True)
    assert call("unload_lora_adapter", lora_name="poet")["success"]
    assert call("load_lora_adapter", lora_name="poet", lora_path="/adapters/poet")["success"]
    assert call("unload_lora_adapter", lora_name="poet")["success"]


def test_a_change_that_its_caller_gives_up_is_known_to_all_all_the_same(call_async: Caller):
    client = call_async.clients[0]
    with call_async.control.hold("LoadLoRAAdapterReqInput"):
        arguments = {"lora_name": "poet", "lora_path": "/adapters/poet"}
        assert ask(client, "async_load_lora_adapter", arguments, within=0.05) == {"given up": 0.05}
    assert call_async("unload_lora_adapter", lora_name="poet")["success"]
    with call_async.control.hold("UpdateWeightFromDiskReqInput"):
        arguments = {"model_path": "/models/new", "weight_version": "v2"}
        assert ask(client, "async_update_weights_from_disk", arguments, within=0.05) == {"given up": 0.05}
    # The next change is one after it.
    assert call_async("begin_weight_update")[0]
    assert call_async("end_weight_update")[0]
    assert call_async("get_model_info")["weight_version"] == "v2"
    with call_async.control.hold("ReleaseMemoryOccupationReqInput"):
        assert ask(client, "async_release_memory_occupation", {}, within=0.05) == {"given up": 0.05}
    assert call_async("resume_memory_occupation") is None
    call_async.restore()
