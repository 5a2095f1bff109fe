"""The engine's contract, taken from a running sglang.Engine."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from ...contract import EngineContract, FeatureFacts, ModelFacts, WireFacts
from ...coordination.client import SOCKET_NAME as COORDINATOR
from ...errors import EngineStartError
from ...system.storage import writing
from ...tokenization.server import SOCKET_NAME
from .publications import kv_event_facts, load_facts
from .schema import read_modules, read_schema

log = logging.getLogger("sglang_subgw")

_SECRETS: Final = ("api_key", "admin_api_key", "ssl_keyfile_password")


def contract_from_engine(engine: Any, runtime_dir: Path, *, engine_id: str) -> EngineContract:
    """Everything a shard must know of `engine`; saves its tokenizer in `runtime_dir`.

    Raises EngineStartError for a tokenizer that only SGLang's own Python code can run.
    """
    from sglang import __version__
    from sglang.srt.managers import io_struct

    args = _server_args(engine.tokenizer_manager.server_args)
    features = _features(engine, args)
    info = _plain(
        {
            **engine._scheduler_init_result.scheduler_infos[0],
            "startup_time": getattr(engine.tokenizer_manager, "startup_time", None),
        }
    )
    return EngineContract(
        engine_id=engine_id,
        sglang_version=__version__,
        wire=WireFacts(
            worker_endpoint=engine.port_args.tokenizer_worker_ipc_name,
            runtime_dir=str(runtime_dir),
            coordinator=str(runtime_dir / COORDINATOR),
            codec="pickle" if io_struct._USE_PICKLE_IPC else "msgpack",
            schema=read_schema(),
            modules=read_modules(),
        ),
        model=_model(engine, args, runtime_dir),
        features=features,
        loads=load_facts(engine),
        kv_events=kv_event_facts(args, info, features.num_dp_ranks, runtime_dir),
        server_args=args,
        scheduler_info=info,
    )


def _model(engine: Any, args: Mapping[str, Any], runtime_dir: Path) -> ModelFacts:
    manager, templates = engine.tokenizer_manager, engine.template_manager
    config = manager.model_config
    tokenizer = manager.tokenizer
    return ModelFacts(
        model_path=manager.model_path,
        served_model_name=manager.served_model_name,
        model_type=getattr(config.hf_config, "model_type", None) or "",
        architectures=tuple(getattr(config.hf_config, "architectures", None) or ()),
        is_generation=manager.is_generation,
        is_multimodal=config.is_multimodal,
        has_image_understanding=bool(getattr(config, "is_image_understandable_model", False)),
        has_audio_understanding=bool(getattr(config, "is_audio_understandable_model", False)),
        context_length=manager.context_len,
        vocab_size=config.vocab_size,
        max_req_input_len=manager.max_req_input_len,
        num_reserved_tokens=manager.num_reserved_tokens,
        weight_version=_in_effect(manager, args, "weight_version"),
        tokenizer_path=args.get("tokenizer_path") or manager.model_path,
        tokenizer_file="" if tokenizer is None else _save_tokenizer(tokenizer, runtime_dir),
        tokenization_socket="" if tokenizer is None else str(runtime_dir / SOCKET_NAME),
        special_tokens={} if tokenizer is None else _plain(dict(tokenizer.special_tokens_map)),
        chat_template=_chat_template(templates, tokenizer),
        chat_template_content_format=templates.jinja_template_content_format or "string",
        default_sampling_params=_plain(config.get_default_sampling_params()),
        preferred_sampling_params=_plain(manager.preferred_sampling_params or {}),
        **_embedding(config, tokenizer),
    )


def _embedding(config: Any, tokenizer: Any) -> dict[str, Any]:
    """What concerns embeddings and scores."""
    from sglang.srt.configs import model_config

    architectures = list(getattr(config.hf_config, "architectures", None) or ())

    def is_one(kind: str) -> bool:
        check = getattr(model_config, kind, None)
        return check is not None and bool(check(architectures))

    return {
        "hidden_size": int(getattr(config, "hidden_size", None) or 0),
        "is_matryoshka": bool(getattr(config, "is_matryoshka", False)),
        "matryoshka_dimensions": tuple(getattr(config, "matryoshka_dimensions", None) or ()),
        "scores_positions": is_one("is_score_and_pool_model"),
        "is_cross_encoder": is_one("is_cross_encoding_pooler_model"),
        "answers_decisions": any(
            getattr(config, name, None) is not None for name in ("joint_head_config", "pointer_head")
        ),
        "final_token": tokenizer.eos_token_id if tokenizer and getattr(config, "is_embedding_gemma", False) else None,
    }


def _save_tokenizer(tokenizer: Any, runtime_dir: Path) -> str:
    """Write what the engine's own worker tokenizes with, as it is after transformers' corrections."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None or not getattr(tokenizer, "is_fast", False):
        raise EngineStartError(
            f"The model's tokenizer ({type(tokenizer).__name__}) is written in Python.",
            hint="A shard needs one that the tokenizers library can run: a tokenizer.json in the model's directory.",
        )
    if truncation := backend.truncation:
        backend.no_truncation()
    if padding := backend.padding:
        backend.no_padding()
    try:
        text = backend.to_str()
    finally:
        if truncation:
            backend.enable_truncation(**truncation)
        if padding:
            backend.enable_padding(**padding)
    path = runtime_dir / "tokenizer.json"
    with (
        writing("The tokenizer's file", runtime_dir),
        os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file,
    ):
        file.write(text)
    return str(path)


def _chat_template(templates: Any, tokenizer: Any) -> str | None:
    """The Jinja template that chats are rendered with, or None without one."""
    special = templates.chat_template_name or getattr(templates, "python_chat_template", None)
    if special:
        name = getattr(special, "name", special)
        log.warning("The chat template %r is code of SGLang's, not Jinja: /v1/chat/completions can't be served.", name)
        return None
    template = getattr(tokenizer, "chat_template", None)
    if isinstance(template, Mapping):
        template = template.get("default")
    return template if isinstance(template, str) else None


def _features(engine: Any, args: Mapping[str, Any]) -> FeatureFacts:
    manager = engine.tokenizer_manager
    ranks = getattr(manager, "elastic_worker_count", None) or args.get("dp_size") or 1

    def on(name: str) -> bool:
        return bool(args.get(name))

    return FeatureFacts(
        skip_tokenizer_init=manager.skip_tokenizer_init,
        allow_auto_truncate=manager.allow_auto_truncate,
        incremental_streaming_output=on("incremental_streaming_output"),
        num_dp_ranks=int(ranks),
        disaggregation_mode=args.get("disaggregation_mode") or "null",
        disaggregation_transfer_backend=args.get("disaggregation_transfer_backend") or "",
        load_formats=_load_formats(),
        enable_lora=on("enable_lora"),
        max_loaded_loras=args.get("max_loaded_loras"),
        enable_streaming_session=on("enable_streaming_session"),
        enable_custom_logit_processor=on("enable_custom_logit_processor"),
        enable_return_hidden_states=on("enable_return_hidden_states"),
        enable_priority_scheduling=manager.enable_priority_scheduling,
        default_priority=manager.default_priority_value,
        enable_metrics=manager.enable_metrics,
        enable_cache_report=on("enable_cache_report"),
        stream_response_default_include_usage=on("stream_response_default_include_usage"),
        disable_radix_cache=on("disable_radix_cache"),
        chunked_prefill_size=args.get("chunked_prefill_size"),
        enable_mis=on("enable_mis"),
        enable_strict_thinking=on("enable_strict_thinking"),
        speculative_algorithm=args.get("speculative_algorithm"),
        tool_call_parser=_in_effect(manager, args, "tool_call_parser"),
        reasoning_parser=_in_effect(manager, args, "reasoning_parser"),
        grammar_backend=args.get("grammar_backend"),
    )


def _load_formats() -> tuple[str, ...]:
    from sglang.srt.configs.load_config import LoadFormat

    return tuple(item.value for item in LoadFormat)


def _in_effect(manager: Any, args: Mapping[str, Any], name: str) -> Any:
    """A setting as it is now: an "auto" has become what SGLang detected."""
    return manager.config_value(name) if hasattr(manager, "config_value") else args.get(name)


def _server_args(server_args: Any) -> dict[str, Any]:
    """The arguments as SGLang's /server_info shows them, secrets taken out."""
    from sglang.srt.utils import common

    if hasattr(common, "build_server_info"):
        raw = common.build_server_info(server_args, {})
    else:
        import dataclasses

        raw = dataclasses.asdict(server_args)
    values: dict[str, Any] = _plain(raw)
    for name in _SECRETS:
        if values.get(name) is not None:
            values[name] = "<redacted>"
    return values


def _plain(value: Any) -> Any:
    """The value as JSON would carry it; what JSON can't carry is shown as text, a callable not at all."""
    try:
        from sglang.srt.sampling.watermarking.core import redact_watermark_secrets
        from sglang.srt.utils.msgspec_utils import msgspec_to_builtins
    except ImportError:
        pass
    else:
        value = msgspec_to_builtins(redact_watermark_secrets(value))
    return json.loads(json.dumps(value, default=lambda other: None if callable(other) else str(other)))
