"""What each field of a control message may hold; a malformed one would end the scheduler for every client."""

from __future__ import annotations

from typing import Final

from .values import (
    Check,
    is_bool,
    is_bytes_list,
    is_float,
    is_int,
    is_int_list,
    is_member,
    is_plain,
    is_str,
    is_str_list,
    is_str_map,
    one_of,
    or_none,
)

_FROM: Final[dict[str, Check]] = {"http_worker_ipc": is_str}
_SELECTOR: Final = one_of("target", "draft", "all")
_UPDATE: Final[dict[str, Check]] = {
    **_FROM,
    "flush_cache": is_bool,
    "weight_version": or_none(is_str),
    "torch_empty_cache": is_bool,
}
_LOADING_UPDATE: Final[dict[str, Check]] = {**_UPDATE, "load_format": or_none(is_str), "abort_all_requests": is_bool}
_LORA: Final[dict[str, Check]] = {**_FROM, "lora_name": is_str, "lora_id": is_str}


def _shapes(value: object) -> bool:
    return type(value) is list and all(map(is_int_list, value))


def _object(value: object) -> bool:
    return type(value) is dict and is_plain(value)


def _lora_tokens(value: object) -> bool:
    return type(value) is dict and all(map(is_str, value)) and all(map(is_int, value.values()))


CONTROL: Final[dict[str, dict[str, Check]]] = {
    "PauseGenerationReqInput": {**_FROM, "mode": one_of("abort", "retract", "in_place")},
    "ContinueGenerationReqInput": {**_FROM, "torch_empty_cache": is_bool},
    "FlushCacheReqInput": {**_FROM, "timeout_s": or_none(is_float)},
    "GetInternalStateReq": _FROM,
    "OpenSessionReqInput": {
        **_FROM,
        "capacity_of_str_len": is_int,
        "session_id": is_str,
        "streaming": or_none(is_bool),
        "timeout": or_none(is_float),
    },
    "CloseSessionReqInput": {**_FROM, "session_id": is_str},
    "ProfileReq": {
        **_FROM,
        "req_type": is_member("ProfileReqType"),
        "output_dir": or_none(is_str),
        "start_step": or_none(is_int),
        "num_steps": or_none(is_int),
        "activities": or_none(is_str_list),
        "profile_by_stage": is_bool,
        "with_stack": or_none(is_bool),
        "record_shapes": or_none(is_bool),
        "profile_id": or_none(is_str),
        "merge_profiles": is_bool,
        "profile_prefix": or_none(is_str),
        "profile_stages": or_none(is_str_list),
        "detailed_annotations": is_bool,
    },
    "ExpertDistributionReq": {**_FROM, "action": is_member("ExpertDistributionReqType")},
    "FreezeGCReq": {**_FROM, "gc_threshold": or_none(is_int_list)},
    "InitWeightsUpdateGroupReqInput": {
        **_FROM,
        "master_address": is_str,
        "master_port": is_int,
        "rank_offset": is_int,
        "world_size": is_int,
        "group_name": is_str,
        "backend": is_str,
    },
    "DestroyWeightsUpdateGroupReqInput": {**_FROM, "group_name": is_str},
    "BeginWeightUpdateReqInput": {**_FROM, "selector": _SELECTOR},
    "EndWeightUpdateReqInput": _FROM,
    "UpdateWeightFromDiskReqInput": {
        **_LOADING_UPDATE,
        "model_path": is_str,
        "is_async": is_bool,
        "keep_pause": is_bool,
        "recapture_cuda_graph": is_bool,
        "token_step": is_int,
        "manifest": or_none(_object),
    },
    "UpdateWeightsFromDistributedReqInput": {
        **_LOADING_UPDATE,
        "names": is_str_list,
        "dtypes": is_str_list,
        "shapes": _shapes,
        "group_name": is_str,
        "selector": _SELECTOR,
    },
    "UpdateWeightsFromTensorReqInput": {
        **_LOADING_UPDATE,
        "serialized_named_tensors": is_bytes_list,
        "selector": _SELECTOR,
    },
    "UpdateWeightsFromIPCReqInput": {**_UPDATE, "zmq_handles": is_str_map},
    "UpdateWeightVersionReqInput": {**_FROM, "new_version": is_str, "abort_all_requests": is_bool},
    "GetWeightsByNameReqInput": {**_FROM, "name": is_str, "truncate_size": is_int},
    "ReleaseMemoryOccupationReqInput": {**_FROM, "tags": or_none(is_str_list)},
    "ResumeMemoryOccupationReqInput": {**_FROM, "tags": or_none(is_str_list)},
    "LoadLoRAAdapterReqInput": {**_LORA, "lora_path": is_str, "pinned": is_bool},
    "LoadLoRAAdapterFromTensorsReqInput": {
        **_LORA,
        "config_dict": _object,
        "serialized_named_tensors": is_bytes_list,
        "pinned": is_bool,
        "added_tokens_config": or_none(_lora_tokens),
        "load_format": or_none(is_str),
    },
    "UnloadLoRAAdapterReqInput": _LORA,
}
"""By message, every field that a shard may set. A kind that is nowhere holds plain values."""
