"""Scoring: SGLang's Engine.score and async_score."""

from __future__ import annotations

from typing import Any, Final

from ..worker.answers.outputs import ScoreResult
from ..worker.requests.request import EmbeddingRequest, GenerateRequest
from ..worker.scoring.prompts import ScorePrompts, build_prompts
from ..worker.scoring.request import Labels, ScoreRequest, check_score
from ..worker.scoring.results import score_result
from .base import EngineCalls
from .blocking import blocking
from .carried_tensors import Carrier

_TENSORS: Final = ("query_embed_overrides", "item_embed_overrides", "stacked_query_item_embed_overrides")
"""Parameters that SGLang's own worker must see to."""


class ScoringCalls(EngineCalls):
    """What asks how probable, or how good, items are after a query."""

    async def async_score(
        self,
        query: str | list[int] | None = None,
        items: str | list[str] | list[list[int]] | None = None,
        label_token_ids: list[int] | list[list[int]] | None = None,
        apply_softmax: bool = False,
        item_first: bool = False,
        embed_override_token_id: int | None = None,
        query_embed_overrides: list[Any] | None = None,
        item_embed_overrides: list[Any] | None = None,
        return_pooled_hidden_states: bool = False,
        score_extraction_token_id: int | None = None,
        temperature: float = 1.0,
        return_token_logprobs: bool = False,
        stacked_query_item_embed_overrides: list[Any] | None = None,
    ) -> ScoreResult:
        """A row of scores per item: of its labels' probabilities, or of a classifier's classes.

        Overrides are tensors, arrays or lists of numbers. Raises RequestRejected for what the engine must not see,
        EngineRejected and EngineUnavailable for its answers.
        """
        given = {name: value for name, value in locals().items() if name != "self"}
        if any(given[name] is not None for name in _TENSORS):
            return await self._score_there(given)
        for name in (*_TENSORS, "embed_override_token_id"):
            del given[name]
        request = ScoreRequest(**given)
        labels = check_score(request, self.contract)
        if not request.items:
            return ScoreResult([], token_logprobs=[] if return_token_logprobs else None)
        prompts = await build_prompts(request, self.contract, self.tokenizer)
        async with await self.worker.submit(self._request(request, labels, prompts)) as call:
            await call.wait()
            answers = [sample.output() for sample in call.samples]
        return score_result(request, labels, prompts, answers)

    score = blocking(async_score)

    def _request(
        self, request: ScoreRequest, labels: Labels, prompts: ScorePrompts
    ) -> GenerateRequest | EmbeddingRequest:
        delimiters = None if prompts.delimiters is None else [prompts.delimiters]
        if not self.contract.model.is_generation:
            return EmbeddingRequest(
                text=prompts.texts,
                input_ids=prompts.input_ids,
                return_pooled_hidden_states=request.return_pooled_hidden_states,
                multi_item_delimiter_indices=delimiters,
                token_indices_to_pool=prompts.positions,
            )
        if delimiters is not None:
            # One prompt is read once for the labels of all items.
            labels = [list(dict.fromkeys(token for row in labels for token in row))]
        wanted: list[list[int] | None] = [*labels]
        at_places = delimiters is not None or prompts.positions is not None
        return GenerateRequest(
            text=prompts.texts,
            input_ids=prompts.input_ids,
            sampling_params={"max_new_tokens": 0},
            return_logprob=True,
            logprob_start_len=0 if at_places else -1,
            token_ids_logprob=wanted,
            multi_item_delimiter_indices=delimiters,
            token_indices_to_pool=prompts.positions,
        )

    async def _score_there(self, arguments: dict[str, Any]) -> ScoreResult:
        """By SGLang's own worker in the engine's process."""
        given = {name: value for name, value in arguments.items() if value is not None}
        carrier = Carrier()
        for name in _TENSORS:
            if name in given:
                given[name] = carrier.put(name, given[name])
        result, _ = await self.coordination.call("score", carrier.arguments(given), carrier.blob)
        return ScoreResult(**result)
