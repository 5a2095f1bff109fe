"""What differs between the requests that a shard sends: those that ask for text, and those that ask for vectors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, TypedDict

from ...contract import EngineContract
from ...tokenization.tokenizer import ShardTokenizer
from ..answers.facts import AnswerFacts
from ..answers.sample import Sample
from ..requests.plan import AnyPrompt, RequestPlan
from ..requests.ready import Ready


class Identity(TypedDict):
    """Which copy of which prompt a sample is: Sample's own parameters, as it names them."""

    rid: str
    public_id: str
    index: int
    created_at: float | None
    warm_up: bool
    lora_id: str | None


class RequestFamily[R, P: AnyPrompt](ABC):
    """Requests of the type R, taken apart into prompts of the type P."""

    kind: ClassVar[str]
    """The message that carries a prompt."""
    batch_kind: ClassVar[str]
    """The message that carries several of these."""

    def __init__(self, contract: EngineContract, tokenizer: ShardTokenizer, facts: AnswerFacts, endpoint: str) -> None:
        self.contract = contract
        self.tokenizer = tokenizer
        self.facts = facts
        self.endpoint = endpoint
        # With several data-parallel ranks SGLang's controller would send a whole batch to one of them.
        self.batches = self.batch_kind in contract.wire.schema and contract.features.num_dp_ranks <= 1

    @abstractmethod
    def plan(self, request: R) -> RequestPlan[P]:
        """The request, checked as a whole and taken apart; raises RequestRejected."""

    @abstractmethod
    async def prepare(self, request: R, plan: RequestPlan[P]) -> list[Ready[P]]:
        """Each prompt checked and tokenized; raises RequestRejected."""

    @abstractmethod
    def health_check(self) -> Ready[P]:
        """The least that an engine can be asked for."""

    @abstractmethod
    def sample(self, request: R, item: Ready[P], identity: Identity) -> Sample:
        """What collects the answer to one copy of a prompt."""
