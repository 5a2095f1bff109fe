"""SGLang's own worker as far as it makes messages of embedding requests, and its scoring over scripted answers."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

VOCAB_SIZE = 12000
BOS = 1


class Tokens:
    """Both sides' tokenizer: a BOS, and an id per character."""

    loaded = True
    remote = False
    vocab_size = VOCAB_SIZE
    unk_token_id = None
    is_fast = True

    def __call__(self, texts: list[Any], return_token_type_ids: bool = False) -> dict[str, Any]:
        rows = [self.typed(text) for text in texts]
        return {"input_ids": [ids for ids, _ in rows], "token_type_ids": [types for _, types in rows]}

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        ids = [ord(character) % VOCAB_SIZE for character in text]
        return [BOS, *ids] if add_special_tokens else ids

    def typed(self, text: Any) -> tuple[list[int], list[int]]:
        parts = [text] if isinstance(text, str) else text
        rows = [self.encode(part, add_special_tokens=place == 0) for place, part in enumerate(parts)]
        return [token for row in rows for token in row], [place for place, row in enumerate(rows) for _ in row]

    async def encode_all(self, texts: Any, *, add_special_tokens: bool = True) -> list[list[int]]:
        return [self.encode(text, add_special_tokens=add_special_tokens) for text in texts]

    async def encode_typed(self, texts: Any) -> list[tuple[list[int], list[int]]]:
        return [self.typed(text) for text in texts]


def stock_config(**changes: Any) -> Any:
    """What SGLang's ModelConfig says of a model."""
    facts: dict[str, Any] = {
        "is_embedding_gemma": False,
        "is_matryoshka": False,
        "matryoshka_dimensions": None,
        "hidden_size": 64,
        "vocab_size": VOCAB_SIZE,
        "model_path": "m",
        "hf_config": SimpleNamespace(architectures=[]),
        "joint_head_config": None,
        "pointer_head": None,
    }
    return SimpleNamespace(**(facts | changes))


def stock_manager(srt: Any, monkeypatch: pytest.MonkeyPatch, *, config: Any = None, **changes: Any) -> Any:
    """A TokenizerManager with only what makes messages of embedding requests."""
    manager = srt.manager.TokenizerManager.__new__(srt.manager.TokenizerManager)
    vars(manager).update(
        {
            "tokenizer": Tokens(),
            "async_dynamic_batch_tokenizer": None,
            "model_config": config or stock_config(),
            "mm_processor": None,
            "preferred_sampling_params": None,
            "sampling_params_class": srt.sampling.SamplingParams,
            "context_len": 4096,
            "num_reserved_tokens": 0,
            "allow_auto_truncate": False,
            "validate_total_tokens": True,
            "is_generation": False,
            "enable_priority_scheduling": False,
            "rid_to_state": {},
            **changes,
        }
    )
    features = SimpleNamespace(enable_encoder_swa_bounded_replay=False)
    monkeypatch.setattr(srt.manager, "get_exec", lambda: SimpleNamespace(features=features))
    monkeypatch.setattr(srt.manager, "_validate_watermark_request", lambda params: None)
    monkeypatch.setattr(srt.manager, "get_disagg", lambda: SimpleNamespace(language_model_only=False))
    return manager


async def stock_messages(srt: Any, manager: Any, request: Any) -> list[Any]:
    """The TokenizedEmbeddingReqInputs that it makes of an EmbeddingReqInput."""
    request.normalize_batch_and_arguments()
    manager._set_default_priority(request)
    out = []
    for one in [request] if request.is_single else [request[i] for i in range(request.batch_size)]:
        stats = SimpleNamespace(set_tokenize_finish_time=lambda: None)
        manager.rid_to_state[one.rid] = SimpleNamespace(time_stats=stats)
        message = await manager._tokenize_one_request(one)
        message.time_stats = None
        out.append(message)
    return out


def scripted_answers(request: Any, width: int = 3) -> list[dict[str, Any]]:
    """What an engine might answer to a request of either side's; a function of its prompts, places and labels only."""
    prompts = request.text if request.text is not None else request.input_ids
    labels = getattr(request, "token_ids_logprob", None)
    return [_answer(request, prompt, index, labels, width) for index, prompt in enumerate(prompts)]


def _answer(request: Any, prompt: Any, index: int, labels: Any, width: int) -> dict[str, Any]:
    seed = sum((place + 1) * (ord(one) if isinstance(one, str) else one) for place, one in enumerate(prompt))
    meta: dict[str, Any] = {"id": f"r{index}", "prompt_tokens": len(prompt)}
    places = _own(request.token_indices_to_pool, index) or _own(request.multi_item_delimiter_indices, index)
    if labels is None:
        rows = [[math.sin(seed + 7 * place + column) for column in range(width)] for place in places or [0]]
        out = {"embedding": rows if places else rows[0], "meta_info": meta}
        if request.return_pooled_hidden_states:
            states = [[value / 2 for value in row] for row in rows]
            out["pooled_hidden_state"] = states if places else states[0]
        return out
    own = labels[index] if isinstance(labels[0], list) else labels
    rows = [[(-1 - (seed * token + place) % 50 / 10, token, None) for token in own] for place in places or [0]]
    meta["input_token_ids_logprobs" if places else "output_token_ids_logprobs"] = rows
    return {"text": "", "meta_info": meta}


def _own(places: Any, index: int) -> Any:
    return None if places is None else places[index]


def stock_scorer(
    srt: Any, monkeypatch: pytest.MonkeyPatch, *, is_generation: bool, together: bool, **config: Any
) -> Any:
    """SGLang's scoring over scripted answers."""
    torch = pytest.importorskip("torch")

    class Scorer(srt.score.TokenizerManagerScoreMixin):  # type: ignore[misc,name-defined]
        async def generate_request(self, request: Any, _: Any) -> AsyncIterator[Any]:
            answers = scripted_answers(request)
            for answer in answers:
                if "pooled_hidden_state" in answer:
                    answer["pooled_hidden_state"] = torch.tensor(answer["pooled_hidden_state"], dtype=torch.float64)
            yield answers

    scorer = Scorer()
    scorer.tokenizer = Tokens()
    scorer.is_generation = is_generation
    scorer.model_config = stock_config(**config)
    names = {
        "get_exec": SimpleNamespace(features=SimpleNamespace(enable_mis=together)),
        "get_memory": SimpleNamespace(disable_radix_cache=True),
        "get_schedule": SimpleNamespace(chunked_prefill_size=-1),
        "get_serving": SimpleNamespace(allow_auto_truncate=False),
    }
    for name, value in names.items():
        monkeypatch.setattr(srt.score, name, lambda value=value: value)
    return scorer
