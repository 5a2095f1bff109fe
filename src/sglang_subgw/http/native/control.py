"""SGLang's routes that change the engine: weights, adapters, sessions, pauses, profiles. Each is one row of a table."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from ...errors import RequestRejected
from ..core.body import parse_object, read_body
from ..core.endpoint import Handler
from ..core.exchange import Exchange
from ..core.fields import FieldTable, boolean, integer, list_of, map_of, mapping, number, optional, required, string
from ..services import Services

type Form = Callable[[Any, dict[str, Any]], tuple[Any, int]]
"""A result and the request's fields as SGLang's body and status."""

_GET_POST: Final = ("GET", "POST")
_POST: Final = ("POST",)


@dataclass(frozen=True, slots=True)
class ControlRoute:
    """One route: its path, the method of ShardEngine that does it, its fields, and the form of its answer."""

    path: str
    method: str
    form: Form
    fields: FieldTable = dataclasses.field(default_factory=FieldTable)
    methods: tuple[str, ...] = _POST
    renamed: tuple[str, str] | None = None
    """A field of SGLang's that the method has another name for."""


class _Text(str):
    """An answer that isn't JSON."""


def handler(services: Services, control: ControlRoute) -> Handler:
    """The handler of one route."""
    engine, limit = services.engine, services.config.max_body_bytes
    call = getattr(engine, control.method)

    async def handle(exchange: Exchange) -> None:
        body = await read_body(exchange, limit)
        values = control.fields.read(parse_object(body) if body.strip() else {})
        given = {name: value for name, value in values.items() if value is not None}
        arguments = dict(given)
        if control.renamed is not None:
            arguments[control.renamed[1]] = arguments.pop(control.renamed[0])
        answer, status = control.form(await call(**arguments), given)
        if isinstance(answer, _Text):
            await exchange.text(answer, status)
        else:
            await exchange.json(answer, status)

    return handle


def _said(text: str) -> Form:
    return lambda result, given: (_Text(text), 200)


def _outcome(result: Any, given: dict[str, Any]) -> tuple[Any, int]:
    success, message, *paused = result
    content = {"success": success, "message": message}
    if paused:
        content["num_paused_requests"] = paused[0]
    return content, 200 if success else 400


def _adapter(result: Any, given: dict[str, Any]) -> tuple[Any, int]:
    return {"rid": None, "http_worker_ipc": None, **dataclasses.asdict(result)}, 200 if result.success else 400


def _paused(what: str) -> Form:
    return lambda result, given: ({"message": f"Generation {what} successfully.", "status": "ok"}, 200)


def _version(result: Any, given: dict[str, Any]) -> tuple[Any, int]:
    version = given["new_version"]
    return {"success": True, "message": f"Weight version updated to {version}", "new_version": version}, 200


def _session(result: Any, given: dict[str, Any]) -> tuple[Any, int]:
    if result is None:
        raise RequestRejected("Failed to open the session. Check if a session with the same id is still open.")
    return result, 200


def _parameter(result: Any, given: dict[str, Any]) -> tuple[Any, int]:
    if result is None:
        raise RequestRejected("Get parameter by name failed")
    return result, 200


def _nothing(result: Any, given: dict[str, Any]) -> tuple[Any, int]:
    return _Text(), 200


_UPDATE: Final = (
    optional("flush_cache", boolean),
    optional("abort_all_requests", boolean),
    optional("weight_version", string),
    optional("torch_empty_cache", boolean),
)
_TAGS: Final = FieldTable(optional("tags", list_of(string)))

CONTROLS: Final = (
    ControlRoute(
        "/pause_generation", "async_pause_generation", _paused("paused"), FieldTable(optional("mode", string))
    ),
    ControlRoute(
        "/continue_generation",
        "async_continue_generation",
        _paused("continued"),
        FieldTable(optional("torch_empty_cache", boolean)),
    ),
    ControlRoute(
        "/load_lora_adapter",
        "async_load_lora_adapter",
        _adapter,
        FieldTable(required("lora_name", string), required("lora_path", string), optional("pinned", boolean)),
    ),
    ControlRoute(
        "/unload_lora_adapter", "async_unload_lora_adapter", _adapter, FieldTable(required("lora_name", string))
    ),
    ControlRoute(
        "/load_lora_adapter_from_tensors",
        "async_load_lora_adapter_from_tensors",
        _adapter,
        FieldTable(
            required("lora_name", string),
            required("config_dict", mapping),
            required("serialized_named_tensors", list_of(string)),
            optional("load_format", string),
        ),
        renamed=("serialized_named_tensors", "tensors"),
    ),
    ControlRoute(
        "/open_session",
        "async_open_session",
        _session,
        FieldTable(
            required("capacity_of_str_len", integer),
            optional("session_id", string),
            optional("streaming", boolean),
            optional("timeout", number),
        ),
        _GET_POST,
    ),
    ControlRoute(
        "/close_session", "async_close_session", _nothing, FieldTable(required("session_id", string)), _GET_POST
    ),
    ControlRoute(
        "/update_weights_from_disk",
        "async_update_weights_from_disk",
        _outcome,
        FieldTable(
            required("model_path", string),
            optional("load_format", string),
            *_UPDATE,
            optional("is_async", boolean),
            optional("keep_pause", boolean),
            optional("recapture_cuda_graph", boolean),
            optional("token_step", integer),
            optional("manifest", mapping),
        ),
    ),
    ControlRoute(
        "/update_weights_from_tensor",
        "async_update_weights_from_tensor",
        _outcome,
        FieldTable(
            required("serialized_named_tensors", list_of(string)),
            optional("load_format", string),
            *_UPDATE,
            optional("selector", string),
        ),
        renamed=("serialized_named_tensors", "named_tensors"),
    ),
    ControlRoute(
        "/update_weights_from_distributed",
        "async_update_weights_from_distributed",
        _outcome,
        FieldTable(
            required("names", list_of(string)),
            required("dtypes", list_of(string)),
            required("shapes", list_of(list_of(integer))),
            optional("group_name", string),
            optional("load_format", string),
            *_UPDATE,
            optional("selector", string),
        ),
    ),
    ControlRoute(
        "/update_weights_from_ipc",
        "async_update_weights_from_ipc",
        _outcome,
        FieldTable(
            required("zmq_handles", map_of(string)),
            optional("flush_cache", boolean),
            optional("weight_version", string),
            optional("torch_empty_cache", boolean),
        ),
    ),
    ControlRoute(
        "/update_weight_version",
        "async_update_weight_version",
        _version,
        FieldTable(required("new_version", string), optional("abort_all_requests", boolean)),
    ),
    ControlRoute(
        "/init_weights_update_group",
        "async_init_weights_update_group",
        _outcome,
        FieldTable(
            required("master_address", string),
            required("master_port", integer),
            required("rank_offset", integer),
            required("world_size", integer),
            optional("group_name", string, "weight_update_group"),
            optional("backend", string),
        ),
    ),
    ControlRoute(
        "/destroy_weights_update_group",
        "async_destroy_weights_update_group",
        _outcome,
        FieldTable(optional("group_name", string, "weight_update_group")),
    ),
    ControlRoute(
        "/begin_weight_update", "async_begin_weight_update", _outcome, FieldTable(optional("selector", string))
    ),
    ControlRoute("/end_weight_update", "async_end_weight_update", _outcome),
    ControlRoute(
        "/get_weights_by_name",
        "async_get_weights_by_name",
        _parameter,
        FieldTable(required("name", string), optional("truncate_size", integer)),
        _GET_POST,
    ),
    ControlRoute("/release_memory_occupation", "async_release_memory_occupation", _nothing, _TAGS, _GET_POST),
    ControlRoute("/resume_memory_occupation", "async_resume_memory_occupation", _nothing, _TAGS, _GET_POST),
    ControlRoute(
        "/start_profile",
        "async_start_profile",
        _said("Start profiling.\n"),
        FieldTable(
            optional("output_dir", string),
            optional("start_step", integer),
            optional("num_steps", integer),
            optional("activities", list_of(string)),
            optional("profile_by_stage", boolean),
            optional("with_stack", boolean),
            optional("record_shapes", boolean),
            optional("profile_id", string),
            optional("merge_profiles", boolean),
            optional("profile_prefix", string),
            optional("profile_stages", list_of(string)),
            optional("detailed_annotations", boolean),
        ),
        _GET_POST,
    ),
    ControlRoute(
        "/stop_profile",
        "async_stop_profile",
        _said("Stop profiling. This will take some time.\n"),
        methods=_GET_POST,
    ),
    ControlRoute(
        "/start_expert_distribution_record",
        "async_start_expert_distribution_record",
        _said("Start recording the expert distribution.\n"),
        methods=_GET_POST,
    ),
    ControlRoute(
        "/stop_expert_distribution_record",
        "async_stop_expert_distribution_record",
        _said("Stop recording the expert distribution.\n"),
        methods=_GET_POST,
    ),
    ControlRoute(
        "/dump_expert_distribution_record",
        "async_dump_expert_distribution_record",
        _said("Dump expert distribution record.\n"),
        methods=_GET_POST,
    ),
    ControlRoute("/freeze_gc", "async_freeze_gc", _said("Garbage collection frozen.\n"), methods=_GET_POST),
)
"""Every such route."""
