"""The contract that a simulated engine publishes: a small model with the byte-level tokenizer."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..contract import EngineContract, FeatureFacts, ModelFacts, WireFacts
from ..coordination.client import SOCKET_NAME as COORDINATOR
from ..tokenization.server import SOCKET_NAME
from .control.weights import LOAD_FORMATS
from .publications.facts import kv_event_facts, load_facts
from .publications.loads import loads_path
from .tokenizer import CHAT_TEMPLATE, ByteTokenizer
from .wire.schema import VERSION, field_lists, modules


def simulated_contract(
    runtime_dir: Path,
    tokenizer: ByteTokenizer,
    *,
    codec: str,
    model: dict[str, Any],
    features: dict[str, Any],
    server_args: Mapping[str, Any] | None = None,
    kv_events: Mapping[str, Any] | None = None,
) -> EngineContract:
    """Facts of a simulated engine whose files are in `runtime_dir`; the rest replaces or adds single facts."""
    tokenizer_file = runtime_dir / "tokenizer.json"
    tokenizer.save(tokenizer_file)
    engine_id = secrets.token_hex(6)
    context_length = model.get("context_length", 4096)
    facts: dict[str, Any] = {
        "model_path": "simulated-model",
        "served_model_name": "simulated-model",
        "model_type": "llama",
        "architectures": ("LlamaForCausalLM",),
        "context_length": context_length,
        "vocab_size": tokenizer.vocab_size,
        "max_req_input_len": context_length - 6,
        "tokenizer_path": "simulated-model",
        "tokenizer_file": str(tokenizer_file),
        "tokenization_socket": str(runtime_dir / SOCKET_NAME),
        "special_tokens": {"bos_token": "<|bos|>", "eos_token": "<|eos|>"},
        "chat_template": CHAT_TEMPLATE,
    }
    return EngineContract(
        engine_id=engine_id,
        sglang_version=VERSION,
        wire=WireFacts(
            worker_endpoint=f"ipc://{runtime_dir}/router",
            runtime_dir=str(runtime_dir),
            coordinator=str(runtime_dir / COORDINATOR),
            codec=codec,
            schema=field_lists(),
            modules=modules(),
        ),
        model=ModelFacts(**(facts | model)),
        features=FeatureFacts(
            **({"grammar_backend": "simulated", "load_formats": tuple(sorted(LOAD_FORMATS))} | features)
        ),
        loads=load_facts(loads_path(engine_id)),
        kv_events=kv_event_facts(runtime_dir, features.get("num_dp_ranks", 1), kv_events),
        server_args={
            "model_path": "simulated-model",
            "tokenizer_worker_num": 2,
            "device": "simulated",
            "load_format": "auto",
            **(server_args or {}),
        },
        scheduler_info={"status": "ready", "max_total_num_tokens": 1 << 16, "max_req_input_len": context_length - 6},
    )
