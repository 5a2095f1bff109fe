"""Requests for embeddings, for the scores of a classifier or a reward model, and for a cross encoder's."""

from __future__ import annotations

from typing import Any

from ...contract import EngineContract
from ...errors import RequestRejected
from ...tokenization.tokenizer import ShardTokenizer
from ...wire.outgoing.token_ids import packed
from ..answers.embedding_sample import EmbeddingSample
from ..answers.facts import AnswerFacts
from ..requests.checks_embedding import check_embedding_request
from ..requests.expand_embedding import EmbeddingPrompt, expand_embedding
from ..requests.limits import check_positions, fit
from ..requests.plan import RequestPlan
from ..requests.ready import Ready, names_adapters, priority_of
from ..requests.request import EmbeddingRequest
from ..requests.routing import follows_rooms
from ..requests.sampling import normalize
from .family import Identity, RequestFamily

type Tokens = tuple[list[int], list[int] | None]
"""Ids, and for each the part of a pair that it belongs to."""


class EmbeddingFamily(RequestFamily[EmbeddingRequest, EmbeddingPrompt]):
    """Answered at once, after the prompt was read."""

    kind = "TokenizedEmbeddingReqInput"
    batch_kind = "BatchTokenizedEmbeddingReqInput"

    def __init__(self, contract: EngineContract, tokenizer: ShardTokenizer, facts: AnswerFacts, endpoint: str) -> None:
        super().__init__(contract, tokenizer, facts, endpoint)
        self._named_adapters = names_adapters(contract, self.kind)
        # SGLang gives such a model the types of those in a batch that have any, as if all had: one that lacks them
        # would end the scheduler.
        self._typed = any("bert" in name.lower() for name in contract.model.architectures)

    def plan(self, request: EmbeddingRequest) -> RequestPlan[EmbeddingPrompt]:
        check_embedding_request(request, self.contract)
        return expand_embedding(request)

    async def prepare(
        self, request: EmbeddingRequest, plan: RequestPlan[EmbeddingPrompt]
    ) -> list[Ready[EmbeddingPrompt]]:
        tokens = await self._tokenize(request, plan.prompts)
        return [self._ready(request, prompt, *row) for prompt, row in zip(plan.prompts, tokens, strict=True)]

    def health_check(self) -> Ready[EmbeddingPrompt]:
        request = EmbeddingRequest(input_ids=[0])
        item = self._ready(request, expand_embedding(request).prompts[0], [0], None)
        if follows_rooms(self.contract):
            item.fields["routed_dp_rank"] = 0
        return item

    def sample(self, request: EmbeddingRequest, item: Ready[EmbeddingPrompt], identity: Identity) -> EmbeddingSample:
        return EmbeddingSample(**identity, facts=self.facts)

    def _ready(
        self, request: EmbeddingRequest, prompt: EmbeddingPrompt, ids: list[int], types: list[int] | None
    ) -> Ready[EmbeddingPrompt]:
        sampling = normalize({**prompt.sampling_params, "max_new_tokens": 0}, self.contract, self.tokenizer)
        ids, _ = fit(ids, self.contract)
        if self._typed:
            types = types or [0] * len(ids)
        if types is not None:
            # The scheduler would cut the ids only.
            ids = ids[: self.contract.model.max_req_input_len] if self.contract.features.allow_auto_truncate else ids
            types = types[: len(ids)]
        check_positions(prompt, len(ids), self.contract)
        fields: dict[str, Any] = {
            "http_worker_ipc": self.endpoint,
            "input_text": None,
            "input_ids": packed(ids),
            "mm_inputs": None,
            "token_type_ids": types,
        }
        optional: dict[str, Any] = {
            "lora_name": prompt.lora_path if self._named_adapters else None,
            "priority": priority_of(request.priority, self.contract.features),
            "dimensions": request.dimensions,
            "return_pooled_hidden_states": request.return_pooled_hidden_states or None,
            "multi_item_delimiter_indices": prompt.multi_item_delimiter_indices,
            "token_indices_to_pool": prompt.token_indices_to_pool,
        }
        fields.update((name, value) for name, value in optional.items() if value is not None)
        return Ready(prompt, fields["input_ids"], sampling, fields)

    async def _tokenize(self, request: EmbeddingRequest, prompts: list[EmbeddingPrompt]) -> list[Tokens]:
        if request.input_ids is not None:
            return [(prompt.input_ids or [], None) for prompt in prompts]
        texts = [prompt.text if prompt.text is not None else "" for prompt in prompts]
        tokens: list[Tokens]
        if request.is_cross_encoder_request:
            tokens = [*await self.tokenizer.encode_typed(texts)]
        else:
            plain = [text for text in texts if isinstance(text, str)]
            tokens = [(self._ended(ids), None) for ids in await self.tokenizer.encode_all(plain)]
        if not all(ids for ids, _ in tokens):
            raise RequestRejected("The prompt is empty: it has no tokens.", param="text")
        return tokens

    def _ended(self, ids: list[int]) -> list[int]:
        final = self.contract.model.final_token
        return ids if final is None or (ids and ids[-1] == final) else [*ids, final]
