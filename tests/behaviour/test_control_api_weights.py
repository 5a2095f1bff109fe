"""Weights and adapters that change by a call from an application in a shard, as every shard sees them."""

from __future__ import annotations

import base64
from collections.abc import Callable

from sglang_subgw.simulated.model import PARAMETERS, digest
from support.calling import DISTRIBUTED, GROUP, PLAIN, SERIALIZED, Caller, ask

PAYLOAD = b"\0serialized\xff"


# Weights.


def test_update_weights_from_disk(call: Caller):
    success, message, paused = call("update_weights_from_disk", model_path="/models/new", weight_version="v2")
    assert (success, paused) == (True, 0)
    assert message == "Succeeded to update model weights. Weight version updated to v2."
    assert call.texts() == {"[new]" + "ab" * 5 + "a"}
    for client in call.clients:
        assert call.generate(client)["meta_info"]["weight_version"] == "v2"
        assert ask(client, "async_get_model_info", {})["result"]["model_path"] == "/models/new"
    failed = call("update_weights_from_disk", model_path="/missing/model", weight_version="v3")
    assert (failed[0], "Failed to get weights iterator" in failed[1]) == (False, True)
    assert call("get_model_info")["weight_version"] == "v2"
    call.restore()
    assert call.texts() == {PLAIN}


def test_weights_from_tensors(call: Caller):
    text = base64.b64encode(PAYLOAD).decode()
    success, message = call("update_weights_from_tensor", named_tensors=[text], **SERIALIZED)
    assert (success, "must run between begin_weight_update" in message) == (False, True)
    assert call("begin_weight_update") == [True, "Success"]
    assert call("begin_weight_update")[0] is False
    arguments = {"named_tensors": [text], "weight_version": "v4", **SERIALIZED}
    assert call("update_weights_from_tensor", **arguments) == [True, "Success Weight version updated to v4."]
    assert call("end_weight_update") == [True, "Success"]
    assert call("end_weight_update")[0] is False
    assert call.control.messages("UpdateWeightsFromTensorReqInput")[-1]["serialized_named_tensors"] == [PAYLOAD]
    assert {answer[:10] for answer in call.texts()} == {f"[{digest(PAYLOAD.hex())}]"}
    assert {ask(client, "async_get_model_info", {})["result"]["weight_version"] for client in call.clients} == {"v4"}
    call.restore()


def test_weights_from_a_process_group(call: Caller):
    assert call("init_weights_update_group", **GROUP) == [True, "Succeeded to initialize custom process group."]
    assert call.control.groups.receiving == {"trainer"}
    assert call("begin_weight_update", selector="target")[0]
    updated = call("update_weights_from_distributed", **DISTRIBUTED, flush_cache=False)
    assert updated == [True, "Succeeded to update parameter online."]
    elsewhere = call("update_weights_from_distributed", **{**DISTRIBUTED, "group_name": "nowhere"})
    assert (elsewhere[0], "Please call `init_weights_update_group` first." in elsewhere[1]) == (False, True)
    assert call("end_weight_update")[0]
    assert call("destroy_weights_update_group", group_name="trainer")[0]
    assert call("destroy_weights_update_group", group_name="trainer") == [
        False,
        "The group to be destroyed does not exist.",
    ]
    mark = digest(*(DISTRIBUTED[name] for name in ("names", "dtypes", "shapes")))
    assert {answer[:10] for answer in call.texts()} == {f"[{mark}]"}
    call.restore()


def test_weights_from_a_checkpoint_engine(call: Caller):
    handles = {"GPU-0": "ipc:///gpu0"}
    assert call("update_weights_from_ipc", zmq_handles=handles)[0]
    assert {answer[:10] for answer in call.texts()} == {f"[{digest(sorted(handles.items()))}]"}
    call.restore()


def test_weight_version_and_weights_by_name(call: Caller):
    assert call("update_weight_version", new_version="v5") is None
    for client in call.clients:
        assert call.generate(client)["meta_info"]["weight_version"] == "v5"
    first = call("get_weights_by_name", name=PARAMETERS[0], truncate_size=3)
    assert len(first) == 3
    assert len(call("get_weights_by_name", name=PARAMETERS[0])) == 100
    assert call("get_weights_by_name", name="no.such.weight") is None
    call("update_weights_from_disk", model_path="/models/new")
    assert call("get_weights_by_name", name=PARAMETERS[0], truncate_size=3) != first
    call.restore()


# Adapters.


def test_lora_adapters(call: Caller):
    loaded = call("load_lora_adapter", lora_name="poet", lora_path="/adapters/poet")
    assert (loaded["success"], loaded["loaded_adapters"]) == (True, {"poet": "/adapters/poet"})
    assert {answer[:6] for answer in call.texts(lora_path="poet")} == {"[poet]"}
    assert call.texts() == {PLAIN}
    again = call("load_lora_adapter", lora_name="poet", lora_path="/adapters/poet", pinned=True)
    assert (again["success"], "already loaded" in again["error_message"]) == (False, True)
    nowhere = call("load_lora_adapter", lora_name="ghost", lora_path="/missing/ghost")
    assert (nowhere["success"], "/missing/ghost" in nowhere["error_message"]) == (False, True)
    unloaded = call("unload_lora_adapter", lora_name="poet")
    assert (unloaded["success"], unloaded["loaded_adapters"]) == (True, {})
    unknown = call("unload_lora_adapter", lora_name="nobody")
    assert (unknown["success"], "nobody" in unknown["error_message"]) == (False, True)
    assert call.control.adapters.loaded == {}


def test_a_lora_adapter_from_tensors(call: Caller):
    text = base64.b64encode(PAYLOAD).decode()
    config = {"r": 8, "target_modules": ["q_proj"]}
    arguments = {"lora_name": "bard", "tensors": [text], "config_dict": config, **SERIALIZED}
    assert call("load_lora_adapter_from_tensors", **arguments)["loaded_adapters"] == {"bard": "__tensor__"}
    assert {answer[:10] for answer in call.texts(lora_path="bard")} == {f"[{digest(PAYLOAD.hex(), config)}]"}
    assert call("unload_lora_adapter", lora_name="bard")["success"]


def test_lora_is_refused_where_it_is_off(make_caller: Callable[..., Caller]):
    call = make_caller(features={})
    for method, arguments in (
        ("load_lora_adapter", {"lora_name": "poet", "lora_path": "/p"}),
        ("unload_lora_adapter", {"lora_name": "poet"}),
    ):
        answer = call(method, **arguments)
        assert (answer["success"], "--enable-lora" in answer["error_message"]) == (False, True)
    assert call.control.received == []


# Several data-parallel ranks.


def test_every_rank_must_succeed(make_caller: Callable[..., Caller]):
    call = make_caller(features={"num_dp_ranks": 3, "enable_lora": True})
    assert len(call("get_internal_state")) == 3
    assert [len(rows) for rows in call("get_weights_by_name", name=PARAMETERS[0], truncate_size=2)] == [2] * 3
    success, message, paused = call("update_weights_from_disk", model_path="/models/new", weight_version="v2")
    assert (success, paused) == (True, [0, 0, 0])
    said = "Succeeded to update model weights."
    assert message == f"{said} | {said} | {said} Weight version updated to v2."
    call.control.fail("UpdateWeightFromDiskReqInput", "rank 1 is out of memory", rank=1)
    success, message, _ = call("update_weights_from_disk", model_path="/models/newer", weight_version="v3")
    assert (success, message) == (False, f"{said} | rank 1 is out of memory | {said}")
    assert call("get_model_info")["weight_version"] == "v2"
    assert (
        "data-parallel replicas are not supported"
        in call("load_lora_adapter", lora_name="a", lora_path="/a")["error_message"]
    )
    for method, arguments in (
        ("update_weights_from_distributed", DISTRIBUTED),
        ("update_weights_from_tensor", {"named_tensors": ["AA=="], **SERIALIZED}),
        ("update_weights_from_ipc", {"zmq_handles": {}}),
        ("init_weights_update_group", GROUP),
        ("destroy_weights_update_group", {"group_name": "g"}),
    ):
        assert "data-parallel replicas are not supported" in call.refusal(method, **arguments)[0]
    call.stack.check()
