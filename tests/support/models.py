"""Weights and adapters for the demo model, that a test can tell from the first ones."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

RANK = 4
TARGETS = ("q_proj", "v_proj")


def other_weights(directory: Path) -> Path:
    """The demo model with its layers' weights stirred."""
    import torch
    from safetensors.torch import load_file, save_file

    from sglang_subgw.engine.demo.model import ensure_demo_model

    demo = ensure_demo_model()
    directory.mkdir()
    for file in demo.iterdir():
        if file.suffix != ".safetensors":
            shutil.copy(file, directory / file.name)
    generator = torch.Generator().manual_seed(7)
    weights = {
        name: value + torch.randn(value.shape, generator=generator).to(value.dtype) * 0.2 if "layers" in name else value
        for name, value in load_file(demo / "model.safetensors").items()
    }
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    return directory


def adapter(directory: Path, *, seed: int) -> Path:
    """A LoRA adapter that nobody trained."""
    import torch
    from safetensors.torch import save_file

    from sglang_subgw.engine.demo.model import ensure_demo_model

    config = json.loads((ensure_demo_model() / "config.json").read_text())
    hidden = config["hidden_size"]
    width = config.get("head_dim") or hidden // config["num_attention_heads"]
    rows = {"q_proj": config["num_attention_heads"] * width, "v_proj": config["num_key_value_heads"] * width}
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for layer in range(config["num_hidden_layers"]):
        for name in TARGETS:
            key = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            tensors[f"{key}.lora_A.weight"] = torch.randn(RANK, hidden, generator=generator)
            tensors[f"{key}.lora_B.weight"] = torch.randn(rows[name], RANK, generator=generator)
    directory.mkdir()
    save_file(tensors, directory / "adapter_model.safetensors")
    (directory / "adapter_config.json").write_text(
        json.dumps(
            {
                "peft_type": "LORA",
                "task_type": "CAUSAL_LM",
                "r": RANK,
                "lora_alpha": 2 * RANK,
                "target_modules": list(TARGETS),
                "bias": "none",
                "base_model_name_or_path": str(ensure_demo_model()),
            }
        )
    )
    return directory
