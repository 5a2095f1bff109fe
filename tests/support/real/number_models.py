"""Small models of every kind that answers with numbers, made of the demo model: `build(NAME, directory)`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from sglang_subgw.engine.demo.model import ensure_demo_model

LABELS = 3


def build(name: str, directory: Path) -> Path:
    """The model's directory."""
    return {"embedding": _demo, "generation": _demo, "classifier": _classifier, "cross encoder": _cross_encoder}[name](
        directory
    )


def _demo(directory: Path) -> Path:
    return ensure_demo_model()


def _classifier(directory: Path) -> Path:
    """A Qwen2 that nobody trained, with the demo model's tokenizer: SGLang reads its head at any position."""
    from transformers import Qwen2Config, Qwen2ForSequenceClassification

    config = Qwen2Config(
        architectures=["Qwen2ForSequenceClassification"],
        vocab_size=_vocab_size(),
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        num_labels=LABELS,
        pad_token_id=1,
        dtype="float32",
    )
    return _random(directory, Qwen2ForSequenceClassification, config)


def _cross_encoder(directory: Path) -> Path:
    """A BERT that nobody trained, with the demo model's tokenizer."""
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(
        architectures=["BertForSequenceClassification"],
        vocab_size=_vocab_size(),
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=128,
        max_position_embeddings=512,
        num_labels=1,
        position_embedding_type="absolute",
        dtype="float32",
    )
    return _random(directory, BertForSequenceClassification, config)


def _random(directory: Path, model_class: Any, config: Any) -> Path:
    import torch
    from safetensors.torch import save_file

    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(ensure_demo_model() / name, directory / name)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = model_class(config)
    config.save_pretrained(directory)
    # Not model.save_pretrained: it shows a progress bar, whose thread stays.
    save_file(model.state_dict(), directory / "model.safetensors", metadata={"format": "pt"})
    return directory


def _vocab_size() -> int:
    size: int = json.loads((ensure_demo_model() / "config.json").read_text())["vocab_size"]
    return size
