"""Weights that change while the engine serves: one writer at a time over all workers, all of which learn of it.

As in SGLang, a change waits for what runs, and what comes later waits for the change; in a paused engine, where nothing
ends by itself, it is made at once.
"""

from __future__ import annotations

from typing import Any, Final

from ..errors import RequestRejected
from ..worker.answers.outputs import merged
from .alone import AloneCalls
from .base import check_text
from .blocking import blocking
from .tensors import TensorCalls

_TENSOR_FORMATS: Final = ("direct", "flattened_bucket")

type Outcome = tuple[bool, str]
"""Whether it succeeded on every rank, and what the ranks said."""


class WeightCalls(AloneCalls, TensorCalls):
    """SGLang's Engine.update_weights_from_* and its kin; a failure of the engine's is in the answer."""

    async def async_update_weights_from_disk(
        self, model_path: str, load_format: str | None = None, **options: Any
    ) -> tuple[bool, str, int | list[int]]:
        """Load other weights of the same architecture; with the number of requests that were paused for it.

        More `options` are the fields of SGLang's UpdateWeightFromDiskReqInput (weight_version, abort_all_requests …).
        """
        check_text(model_path=model_path)
        self._check_format(load_format, self.contract.features.load_formats)
        if load_format is None:
            load_format = self.worker.weights.get("load_format", self.contract.server_args.get("load_format"))
        fields = {"model_path": model_path, "load_format": load_format, **options}
        # SGLang calls the model by its new path, whatever name it had.
        facts = {"model_path": model_path, "load_format": load_format, "served_model_name": model_path}
        success, message, answers = await self._update("UpdateWeightFromDisk", fields, facts)
        paused = [int(answer.get("num_paused_requests") or 0) for answer in answers]
        return success, message, paused[0] if len(paused) == 1 else paused

    update_weights_from_disk = blocking(async_update_weights_from_disk)

    async def async_update_weights_from_tensor(
        self, named_tensors: Any, load_format: str | None = None, flush_cache: bool = True, **options: Any
    ) -> Outcome:
        """Load weights from pairs of a name and a tensor, or from one serialized payload per tensor-parallel rank."""
        self._check_single_rank("update weights from tensor")
        custom = self.contract.server_args.get("custom_weight_loader") or ()
        self._check_format(load_format, (*_TENSOR_FORMATS, *custom))
        payloads = await self.serialize_tensors(named_tensors, load_format)
        fields = {"serialized_named_tensors": payloads, "load_format": load_format, "flush_cache": flush_cache}
        return await self._updated("UpdateWeightsFromTensor", {**fields, **options})

    update_weights_from_tensor = blocking(async_update_weights_from_tensor)

    async def async_update_weights_from_distributed(
        self,
        names: list[str],
        dtypes: list[str],
        shapes: list[list[int]],
        group_name: str = "weight_update_group",
        flush_cache: bool = True,
        load_format: str | None = None,
        **options: Any,
    ) -> Outcome:
        """Receive these weights over the process group of that name."""
        self._check_single_rank("update weights from distributed")
        if not len(names) == len(dtypes) == len(shapes):
            raise RequestRejected(
                f"names, dtypes and shapes must be of one length, not {len(names)}, {len(dtypes)} and {len(shapes)}."
            )
        fields = {
            "names": list(names),
            "dtypes": [str(dtype).removeprefix("torch.") for dtype in dtypes],
            "shapes": [list(shape) for shape in shapes],
            "group_name": group_name,
            "flush_cache": flush_cache,
            "load_format": load_format,
        }
        return await self._updated("UpdateWeightsFromDistributed", {**fields, **options})

    update_weights_from_distributed = blocking(async_update_weights_from_distributed)

    async def async_update_weights_from_ipc(
        self, zmq_handles: dict[str, str], flush_cache: bool = True, **options: Any
    ) -> Outcome:
        """Receive weights from a checkpoint engine at these sockets, by device."""
        self._check_single_rank("update weights from IPC")
        fields = {"zmq_handles": dict(zmq_handles), "flush_cache": flush_cache}
        return await self._updated("UpdateWeightsFromIPC", {**fields, **options})

    update_weights_from_ipc = blocking(async_update_weights_from_ipc)

    async def async_update_weight_version(self, new_version: str, abort_all_requests: bool = True) -> None:
        """Name the weights that are loaded; every worker answers with the new name when this returns."""
        fields = {"new_version": new_version, "abort_all_requests": abort_all_requests}

        async def name() -> None:
            await self.control.ask("UpdateWeightVersionReqInput", fields, "UpdateWeightVersionReqOutput", None)
            await self._changed(new_version)

        await self.change_alone(name, hold=False)

    update_weight_version = blocking(async_update_weight_version)

    async def async_begin_weight_update(self, selector: str = "all") -> Outcome:
        """Open an update of several parts for the "target" model, the "draft" or "all"."""
        return await self._updated("BeginWeightUpdate", {"selector": selector})

    begin_weight_update = blocking(async_begin_weight_update)

    async def async_end_weight_update(self) -> Outcome:
        """Close it: the engine brings the new weights into the form that it runs."""
        return await self._updated("EndWeightUpdate", {})

    end_weight_update = blocking(async_end_weight_update)

    async def async_init_weights_update_group(
        self,
        master_address: str,
        master_port: int,
        rank_offset: int,
        world_size: int,
        group_name: str,
        backend: str = "nccl",
    ) -> Outcome:
        """Let the schedulers join a process group over which weights will come."""
        fields = {name: value for name, value in locals().items() if name != "self"}
        self._check_single_rank("update weights from distributed")
        check_text(group_name=group_name)
        answers = await self.control.ask(
            "InitWeightsUpdateGroupReqInput", fields, "InitWeightsUpdateGroupReqOutput", None
        )
        return merged(answers)

    init_weights_update_group = blocking(async_init_weights_update_group)

    async def async_destroy_weights_update_group(self, group_name: str) -> Outcome:
        """Leave that process group."""
        self._check_single_rank("destroy parameter update group")
        check_text(group_name=group_name)
        answers = await self.control.ask(
            "DestroyWeightsUpdateGroupReqInput", {"group_name": group_name}, "DestroyWeightsUpdateGroupReqOutput", None
        )
        return merged(answers)

    destroy_weights_update_group = blocking(async_destroy_weights_update_group)

    async def async_get_weights_by_name(self, name: str, truncate_size: int = 100) -> Any:
        """The first values of a parameter, as (nested) lists; one such per data-parallel rank if there are several."""
        fields = {"name": name, "truncate_size": truncate_size}
        answers = await self.control.ask("GetWeightsByNameReqInput", fields, "GetWeightsByNameReqOutput", None)
        values = [answer.get("parameter") for answer in answers]
        return values[0] if len(values) == 1 else values

    get_weights_by_name = blocking(async_get_weights_by_name)

    async def _updated(self, name: str, fields: dict[str, Any]) -> Outcome:
        success, message, _ = await self._update(name, fields, {})
        return success, message

    async def _update(
        self, name: str, fields: dict[str, Any], facts: dict[str, Any]
    ) -> tuple[bool, str, list[dict[str, Any]]]:
        """The outcome and the answers; `facts` are what every worker then knows of the weights, with their version."""
        kind = f"{name}ReqInput"
        abort = bool(fields.get("abort_all_requests"))
        if abort:
            # Before anything is ended for it.
            self.worker.check(kind, fields)

        async def update() -> tuple[bool, str, list[dict[str, Any]]]:
            if "weights" in self.released:
                raise RequestRejected("The memory of the weights is released: resume it before they change.")
            answers = await self.control.ask(kind, fields, f"{name}ReqOutput", None)
            success, message = merged(answers)
            if success:
                message += await self._changed(fields.get("weight_version"), **facts)
            return success, message, answers

        return await self.change_alone(update, abort=abort)

    async def _changed(self, version: str | None, **facts: Any) -> str:
        """Tell every worker; what SGLang then adds to its message."""
        if version is not None:
            facts["version"] = version
        if facts:
            await self.coordination.tell("apply", state={"weights": {**self.worker.weights, **facts}})
        return "" if version is None else f" Weight version updated to {version}."

    # What a scheduler ends at instead of answering.

    def _check_format(self, load_format: str | None, known: tuple[str, ...]) -> None:
        if load_format is not None and load_format not in known:
            raise RequestRejected(
                f"load_format must be one of {', '.join(known)}, not {load_format!r}.", param="load_format"
            )

    def _check_single_rank(self, what: str) -> None:
        if self.contract.features.num_dp_ranks > 1:
            raise RequestRejected(f"data-parallel replicas are not supported for {what}")
