"""Answers of an engine that gives numbers: the same for SGLang's requests and for a shard's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

RERANKER = (
    'Answer can only be "yes" or "no".\n{{ instruct | default("Judge.") }} '
    "{{ messages[0].content }} {{ messages[1].content }}"
)


@dataclass(frozen=True)
class Script:
    """What kind of model answers."""

    is_generation: bool = False
    template: str | None = None

    @classmethod
    def of(cls, name: str) -> Self:
        """By the name that a case has."""
        return {
            "embedding": cls(),
            "generation": cls(is_generation=True),
            "reranker": cls(is_generation=True, template=RERANKER),
        }[name]


def scripted(request: Any) -> Any:
    """An answer to an embedding or a generate request, single or batch: a function of its prompts only."""
    prompts = request.text if request.text is not None else request.input_ids
    is_single = isinstance(prompts, str) or isinstance(prompts[0], int)
    rows = [prompts] if is_single else prompts
    labels = getattr(request, "token_ids_logprob", None)
    out = [_one(row, None if labels is None else labels[index]) for index, row in enumerate(rows)]
    return out[0] if is_single else out


def _one(prompt: Any, labels: list[int] | None) -> dict[str, Any]:
    text = "".join(prompt) if isinstance(prompt, list) and isinstance(prompt[0], str) else prompt
    seed = sum((place + 1) * (ord(one) if isinstance(one, str) else one) for place, one in enumerate(text))
    meta: dict[str, Any] = {"id": f"id-{seed}", "prompt_tokens": len(text)}
    if labels is None:
        return {"embedding": [seed % 97 / 64, -0.5, 0.25], "meta_info": meta}
    meta["output_token_ids_logprobs"] = [[(-1 - seed * token % 30 / 10, token, None) for token in labels]]
    return {"text": "", "meta_info": meta}
