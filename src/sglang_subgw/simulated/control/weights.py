"""Weights: where they come from, the session that tensors come in, and what can be asked of them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Final

from ..model import digest
from ..scheduler import Scheduler
from ..wire.structs import StandIn, make
from .family import Answer, ControlFamily, Handler, Send
from .groups import Groups

LOAD_FORMATS: Final = {
    "auto", "pt", "safetensors", "instanttensor", "npcache", "dummy", "sharded_state", "presharded", "gguf",
    "expert_pack", "bitsandbytes", "mistral", "layered", "flash_rl", "jax", "remote", "remote_instance", "rdma",
    "local_cached", "fastsafetensors", "private", "runai_streamer", "ipc_cache",
}  # fmt: skip
DTYPES: Final = {
    "float16", "bfloat16", "float32", "float64", "float8_e4m3fn", "float8_e5m2", "int8", "uint8", "int32", "int64",
}  # fmt: skip
_TENSOR_FORMATS: Final = (None, "direct", "flattened_bucket")
_NOT_FLUSHED: Final = (
    "Weights were updated, but the cache was not flushed because requests are still running or queued. "
    "Retract or finish them, then call /flush_cache."
)


class Weights(ControlFamily):
    """The weights are the model's; here they change."""

    def __init__(self, scheduler: Scheduler, send: Send, groups: Groups) -> None:
        super().__init__(scheduler, send)
        self.updating = False
        """Between begin_weight_update and end_weight_update."""
        self._groups = groups
        self._snapshot: str | None = None

    def handlers(self) -> Mapping[str, Handler]:
        return {
            "UpdateWeightFromDiskReqInput": self._from_disk,
            "UpdateWeightsFromTensorReqInput": self._from_tensor,
            "UpdateWeightsFromDistributedReqInput": self._from_distributed,
            "UpdateWeightsFromIPCReqInput": self._from_ipc,
            "UpdateWeightVersionReqInput": self._version,
            "BeginWeightUpdateReqInput": self._begin,
            "EndWeightUpdateReqInput": self._end,
            "GetWeightsByNameReqInput": self._by_name,
            "CheckWeightsReqInput": self._check,
        }

    def _from_disk(self, message: StandIn) -> Answer:
        kind = "UpdateWeightFromDiskReqOutput"
        if message.load_format is not None and message.load_format.lower() not in LOAD_FORMATS:
            raise ValueError(f"{message.load_format!r} is not a valid LoadFormat")
        try:
            if message.load_format is None:
                raise ValueError("Unknown load_format: None")
            self._scheduler.model.load_from_disk(message.model_path)
        except (OSError, ValueError) as exc:
            return make(kind, success=False, message=f"Failed to get weights iterator: {exc}.")
        return self._updated(kind, message, "Succeeded to update model weights.")

    def _from_tensor(self, message: StandIn) -> Answer:
        kind = "UpdateWeightsFromTensorReqOutput"
        if not self.updating:
            return make(kind, success=False, message=_no_session("update_weights_from_tensor"))
        own = message.serialized_named_tensors[0]
        if message.load_format not in (*_TENSOR_FORMATS, *(self.server_arg("custom_weight_loader") or ())):
            raise NotImplementedError(f"Unknown load_format={message.load_format}")
        self._scheduler.model.weights = digest(own.hex())
        return self._updated(kind, message, "Success")

    def _from_distributed(self, message: StandIn) -> Answer:
        kind = "UpdateWeightsFromDistributedReqOutput"
        if not self.updating:
            return make(kind, success=False, message=_no_session("update_weights_from_distributed"))
        if problem := self._receive_problem(message):
            return make(kind, success=False, message=f"Failed to receive weights: {problem}")
        self._scheduler.model.weights = digest(message.names, message.dtypes, message.shapes)
        return self._updated(kind, message, "Succeeded to update parameter online.")

    def _from_ipc(self, message: StandIn) -> Answer:
        self._scheduler.model.weights = digest(sorted(message.zmq_handles.items()))
        return self._updated("UpdateWeightsFromIPCReqOutput", message, "Succeeded to update model weights.")

    def _updated(self, kind: str, message: StandIn, text: str) -> StandIn:
        self._scheduler.set_weight_version(message.weight_version)
        flushed = not message.flush_cache or self._scheduler.flush()
        return make(kind, success=flushed, message=text if flushed else _NOT_FLUSHED)

    def _receive_problem(self, message: StandIn) -> str:
        if message.group_name not in self._groups.receiving:
            return (
                f"Group {message.group_name} not in {sorted(self._groups.receiving)}. "
                "Please call `init_weights_update_group` first."
            )
        unknown = [dtype for dtype in message.dtypes if dtype not in DTYPES]
        return f"module 'torch' has no attribute '{unknown[0]}'" if unknown else ""

    def _version(self, message: StandIn) -> Answer:
        self._scheduler.set_weight_version(message.new_version)
        return make("UpdateWeightVersionReqOutput")

    def _begin(self, message: StandIn) -> Answer:
        kind = "BeginWeightUpdateReqOutput"
        if self.updating:
            text = "a weight-update session is already open; call end_weight_update() first"
            return make(kind, success=False, message=text)
        self.updating = True
        return make(kind, success=True, message="Success")

    def _end(self, message: StandIn) -> Answer:
        kind = "EndWeightUpdateReqOutput"
        if not self.updating:
            text = "no weight-update session is open; call begin_weight_update() first"
            return make(kind, success=False, message=text)
        self.updating = False
        return make(kind, success=True, message="Success")

    def _by_name(self, message: StandIn) -> Answer:
        try:
            parameter = self._scheduler.model.parameter(message.name, message.truncate_size)
        except KeyError:
            parameter = None
        return make("GetWeightsByNameReqOutput", parameter=parameter)

    def _check(self, message: StandIn) -> Answer:
        kind, model = "CheckWeightsReqOutput", self._scheduler.model
        match message.action:
            case "checksum":
                payloads = self._checksums(message)
                return [make(kind, success=True, message="Success.", payload=[payload]) for payload in payloads]
            case "snapshot":
                self._snapshot = model.weights
            case "reset_tensors":
                model.weights = "reset"
            case "compare" if self._snapshot is None:
                return make(kind, success=False, message="")  # SGLang asserts without a word.
            case "compare":
                snapshot, self._snapshot = self._snapshot, None
                if snapshot != model.weights:
                    return make(kind, success=False, message=f"weights {model.weights!r} instead of {snapshot!r}")
            case action:
                return make(kind, success=False, message=f"Unsupported {action=}")
        return make(kind, success=True, message="Success.")

    def _checksums(self, message: StandIn) -> list[StandIn]:
        """One per data-parallel rank."""
        checksums = self._scheduler.model.checksums(message.skip_tensor_list or ())
        overall = hashlib.sha256("".join(name + checksums[name] for name in sorted(checksums)).encode()).hexdigest()
        ranks = self._scheduler.contract.features.num_dp_ranks
        return [
            make(
                "ChecksumInfo",
                checksums=checksums,
                per_gpu_checksum=overall,
                parallelism_info=[make("ParallelismInfo", **_placement(rank, ranks))],
            )
            for rank in range(ranks)
        ]


def _no_session(name: str) -> str:
    return f"{name} must run between begin_weight_update() and end_weight_update()"


def _placement(rank: int, ranks: int) -> dict[str, Any]:
    alone = {"tp_rank": 0, "tp_size": 1, "pp_rank": 0, "pp_size": 1, "rank": 0, "size": 1}
    return {"role": "target", "dp_rank": rank, "dp_size": ranks, **alone}
