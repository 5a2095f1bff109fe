"""Builds the demo model's directory: trained here and now on the standard library's texts, nothing is downloaded."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from . import corpus

RECIPE: Final = 3
"""Raised with every change of the corpus, the shape or the training: it names the cached directory."""
CONTEXT_LENGTH: Final = 4096
_VOCAB: Final = 768
_STEPS: Final = 280
_BATCH: Final = 4
_WINDOW: Final = 128
_LEARNING_RATE: Final = 6e-3


def demo_model_dir() -> Path:
    """Where this Python's demo model is cached: its docstrings are what it learns."""
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return root / "sglang_subgw" / f"demo-{RECIPE}-py{sys.version_info.major}.{sys.version_info.minor}"


def is_built(directory: Path | None = None) -> bool:
    """Whether the model is there, so that nothing has to be built."""
    return ((directory or demo_model_dir()) / "config.json").exists()


def ensure_demo_model(directory: Path | None = None) -> Path:
    """The demo model's directory, built in some twenty seconds if it isn't there; complete or absent, never half."""
    directory = directory or demo_model_dir()
    if is_built(directory):
        return directory
    directory.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{directory.name}-", dir=directory.parent))
    try:
        _build(scratch)
        scratch.chmod(0o755)
        try:
            scratch.rename(directory)
        except OSError:
            # Another process may have been first; its result is the same.
            if not is_built(directory):
                raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return directory


def _build(directory: Path) -> None:
    texts = corpus.texts()
    tokenizer = _train_tokenizer(texts)
    tokenizer.save(str(directory / "tokenizer.json"))
    _write_json(
        directory / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": corpus.BEGIN,
            "eos_token": corpus.END,
            "pad_token": corpus.END,
            "model_max_length": CONTEXT_LENGTH,
            "clean_up_tokenization_spaces": False,
            "chat_template": corpus.CHAT_TEMPLATE,
        },
    )
    with _one_thread():
        _train_model(directory, [encoding.ids for encoding in tokenizer.encode_batch(texts, add_special_tokens=False)])


def _train_tokenizer(texts: list[str]) -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer: Any = trainers.BpeTrainer
    tokenizer.train_from_iterator(
        texts,
        trainer(
            vocab_size=_VOCAB,
            special_tokens=[corpus.BEGIN, corpus.END, corpus.TURN],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{corpus.BEGIN} $A",
        pair=f"{corpus.BEGIN} $A $B",
        special_tokens=[(corpus.BEGIN, tokenizer.token_to_id(corpus.BEGIN))],
    )
    return tokenizer


def _train_model(directory: Path, documents: list[list[int]]) -> None:
    import torch
    from safetensors.torch import save_file
    from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

    begin, end = documents[0][0], documents[0][-1]
    generator = torch.Generator().manual_seed(0)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = LlamaForCausalLM(
            LlamaConfig(
                architectures=["LlamaForCausalLM"],
                vocab_size=_VOCAB,
                hidden_size=128,
                intermediate_size=256,
                num_hidden_layers=2,
                num_attention_heads=4,
                num_key_value_heads=2,
                max_position_embeddings=CONTEXT_LENGTH,
                tie_word_embeddings=True,
                bos_token_id=begin,
                eos_token_id=end,
                pad_token_id=end,
                dtype="float32",
            )
        )
    optimizer = torch.optim.AdamW(model.parameters(), lr=_LEARNING_RATE, betas=(0.9, 0.98), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, _LEARNING_RATE, total_steps=_STEPS, pct_start=0.1)
    windows = _windows(documents, generator)
    for _ in range(_STEPS):
        batch = torch.stack([next(windows) for _ in range(_BATCH)])
        loss = model(input_ids=batch, labels=batch, use_cache=False).loss
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    model.config.save_pretrained(directory)
    GenerationConfig(bos_token_id=begin, eos_token_id=end, pad_token_id=end).save_pretrained(directory)
    # Not model.save_pretrained: it shows a progress bar, whose thread stays.
    weights = {name: weight for name, weight in model.state_dict().items() if name != "lm_head.weight"}
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})


def _windows(documents: list[list[int]], generator: Any) -> Iterator[Any]:
    """Endless training windows: all documents in a new order each time around, cut into equal pieces."""
    import torch

    while True:
        order = torch.randperm(len(documents), generator=generator).tolist()
        stream = torch.tensor([token for i in order for token in documents[i]])
        yield from stream[: len(stream) // _WINDOW * _WINDOW].view(-1, _WINDOW)


@contextmanager
def _one_thread() -> Iterator[None]:
    # The number of threads changes the order of sums, and with it the weights.
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n")
