"""What a shard must know of its engine: plain values only, so that any Python can read them.

The list follows what SGLang's own TokenizerWorker takes from ServerArgs and ModelConfig.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from typing import Any, Final

from .publications import FieldList, KvEventFacts, LoadFacts, field_list

REQUIRED: Final = "\x00required"
"""Stands for "no default" in a published field list."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WireFacts:
    """How to speak to the engine's router."""

    worker_endpoint: str
    """zmq endpoint that the router binds (PULL); a shard connects PUSH."""
    runtime_dir: str
    """The engine's directory, mode 0700: its tokenizer, and a seat for each gateway."""
    coordinator: str = ""
    """Unix socket at which the engine's side keeps what all its workers agree on."""
    socket_dir: str = ""
    """Directory in which a shard binds its own receive socket; set by the gateway, "" before."""
    codec: str
    """"pickle" or "msgpack": one per engine, there is no marker on the wire."""
    schema: dict[str, FieldList]
    """Field lists of every message class and of the structs inside them, read from the installed sglang."""
    modules: dict[str, str] = field(default_factory=dict)
    """The module that each of those classes lives in: pickles name classes by it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """What the shard checks requests against and renders prompts with."""

    model_path: str
    served_model_name: str
    model_type: str = ""
    architectures: tuple[str, ...] = ()
    is_generation: bool = True
    is_multimodal: bool = False
    has_image_understanding: bool = False
    has_audio_understanding: bool = False
    context_length: int
    vocab_size: int
    max_req_input_len: int
    num_reserved_tokens: int = 0
    weight_version: str = "default"
    tokenizer_path: str = ""
    tokenizer_file: str = ""
    """The live backend tokenizer, saved by the engine's side in tokenizers' own JSON; "" without a tokenizer."""
    tokenization_socket: str = ""
    """Unix socket at which the engine's side tokenizes for shards that can't load the file; "" without a tokenizer."""
    special_tokens: dict[str, Any] = field(default_factory=dict)
    """transformers' special_tokens_map: names a chat template may use (bos_token, eos_token …)."""
    chat_template: str | None = None
    chat_template_content_format: str = "string"
    """"string" or "openai": how list contents reach the template (SGLang's own detection)."""
    default_sampling_params: dict[str, Any] = field(default_factory=dict)
    """From generation_config: temperature, top_p, top_k, min_p, repetition_penalty."""
    preferred_sampling_params: dict[str, Any] = field(default_factory=dict)
    hidden_size: int = 0
    is_matryoshka: bool = False
    """Its embeddings can be shortened: to `matryoshka_dimensions`, or to any number if there are none."""
    matryoshka_dimensions: tuple[int, ...] = ()
    scores_positions: bool = False
    """A classifier whose head is read at any position of a prompt (SGLang's score_and_pool)."""
    is_cross_encoder: bool = False
    """A classifier of pairs (SGLang's CrossEncodingPooler)."""
    answers_decisions: bool = False
    """A checkpoint that answers schema decisions, and nothing else."""
    final_token: int | None = None
    """What every tokenized text must end with (EmbeddingGemma)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureFacts:
    """Server arguments that change what a shard accepts or answers."""

    skip_tokenizer_init: bool = False
    allow_auto_truncate: bool = False
    incremental_streaming_output: bool = False
    num_dp_ranks: int = 1
    disaggregation_mode: str = "null"
    disaggregation_transfer_backend: str = ""
    load_formats: tuple[str, ...] = ()
    """The names of LoadFormat: a scheduler that is told another one ends."""
    enable_lora: bool = False
    max_loaded_loras: int | None = None
    """More than these are not kept: the one that was used longest ago goes; None for no limit."""
    enable_streaming_session: bool = False
    enable_custom_logit_processor: bool = False
    enable_return_hidden_states: bool = False
    enable_priority_scheduling: bool = False
    default_priority: int | None = None
    enable_metrics: bool = False
    enable_cache_report: bool = False
    stream_response_default_include_usage: bool = False
    disable_radix_cache: bool = False
    chunked_prefill_size: int | None = None
    """-1 if prompts are always read at once."""
    enable_mis: bool = False
    """Several items are scored in one prompt (multi-item scoring)."""
    enable_strict_thinking: bool = False
    speculative_algorithm: str | None = None
    tool_call_parser: str | None = None
    reasoning_parser: str | None = None
    grammar_backend: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineContract:
    """Everything a shard knows of its engine; published once, before the first shard starts."""

    engine_id: str
    """12 hex digits, unique per engine."""
    gateway_id: str = ""
    """12 hex digits, unique per gateway, the first part of every rid; set by the gateway, "" before."""
    attached_to: str = ""
    """The segment of the engine's owner, for a gateway in another process; "" in the owner's."""
    sglang_version: str
    wire: WireFacts
    model: ModelFacts
    features: FeatureFacts = field(default_factory=FeatureFacts)
    loads: LoadFacts | None = None
    """None where SGLang publishes no load snapshots."""
    kv_events: KvEventFacts = field(default_factory=KvEventFacts)
    server_args: dict[str, Any] = field(default_factory=dict)
    """ServerArgs as plain values, for /server_info."""
    scheduler_info: dict[str, Any] = field(default_factory=dict)

    def for_gateway(self, gateway_id: str, socket_dir: str) -> EngineContract:
        """What one gateway tells its shards: the same with its own id and directory."""
        return dataclasses.replace(
            self, gateway_id=gateway_id, wire=dataclasses.replace(self.wire, socket_dir=socket_dir)
        )

    def to_json(self) -> bytes:
        """The contract as UTF-8 JSON."""
        return json.dumps(dataclasses.asdict(self), ensure_ascii=False).encode()

    @classmethod
    def from_json(cls, data: bytes | memoryview) -> EngineContract:
        """The contract that `to_json` wrote."""
        raw = json.loads(bytes(data))
        wire = raw["wire"]
        wire["schema"] = {name: field_list(fields) for name, fields in wire["schema"].items()}
        model, features = raw["model"], raw["features"]
        features["load_formats"] = tuple(features["load_formats"])
        for name in ("architectures", "matryoshka_dimensions"):
            model[name] = tuple(model[name])
        return cls(
            **{
                **raw,
                "wire": WireFacts(**wire),
                "model": ModelFacts(**model),
                "features": FeatureFacts(**features),
                "loads": None if raw["loads"] is None else LoadFacts.from_plain(raw["loads"]),
                "kv_events": KvEventFacts.from_plain(raw["kv_events"]),
            }
        )
