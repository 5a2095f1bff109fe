"""What an answer is built from besides the engine's messages: facts of the engine, and the state of a sample."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from ...contract import EngineContract
from .logprobs import Logprobs


@dataclass(slots=True, kw_only=True)
class AnswerFacts:
    """What every answer of an engine needs besides its own messages."""

    weight_version: str = "default"
    """That of the weights which the engine has now: it changes with them."""
    enable_metrics: bool = False
    speculative: bool = False
    draft_tokens: int = 0
    """Tokens per speculative step, the verified one included."""

    @classmethod
    def of(cls, contract: EngineContract) -> AnswerFacts:
        """The facts in an engine's contract."""
        return cls(
            weight_version=contract.model.weight_version,
            enable_metrics=contract.features.enable_metrics,
            speculative=bool(contract.features.speculative_algorithm),
            draft_tokens=int(contract.server_args.get("speculative_num_draft_tokens") or 0),
        )


class SampleState(Protocol):
    """What `meta_info` tells of a sample itself; times are those of `time.perf_counter`, 0.0 before they come."""

    public_id: str
    stream: bool
    finished: bool
    finish_reason: dict[str, Any] | None
    output_ids: list[int]
    logprobs: Logprobs | None
    customized: dict[str, list[Any]]
    created_at: float
    sent_at: float
    first_at: float
    finished_at: float
