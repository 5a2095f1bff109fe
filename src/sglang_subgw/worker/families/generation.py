"""Requests to generate text."""

from __future__ import annotations

from ...contract import EngineContract
from ...errors import RequestRejected
from ...tokenization.tokenizer import ShardTokenizer
from ..answers.facts import AnswerFacts
from ..answers.logprobs import Logprobs
from ..answers.sample import Sample
from ..requests.build import BATCH_KIND, KIND, Builder
from ..requests.checks import check_prompt, check_request
from ..requests.expand import Prompt, expand
from ..requests.plan import RequestPlan
from ..requests.ready import Ready
from ..requests.request import GenerateRequest
from ..requests.routing import FAKE_HOST, check_meeting, follows_rooms
from ..requests.sampling import normalize
from .family import Identity, RequestFamily


class GenerationFamily(RequestFamily[GenerateRequest, Prompt]):
    """Sampled token by token."""

    kind = KIND
    batch_kind = BATCH_KIND

    def __init__(self, contract: EngineContract, tokenizer: ShardTokenizer, facts: AnswerFacts, endpoint: str) -> None:
        super().__init__(contract, tokenizer, facts, endpoint)
        self._builder = Builder(contract, endpoint)

    def plan(self, request: GenerateRequest) -> RequestPlan[Prompt]:
        check_request(request, self.contract)
        plan = expand(request)
        check_meeting(request, plan, self.contract)
        return plan

    async def prepare(self, request: GenerateRequest, plan: RequestPlan[Prompt]) -> list[Ready[Prompt]]:
        sampling = [normalize(prompt.sampling_params, self.contract, self.tokenizer) for prompt in plan.prompts]
        ids = await self._tokenize(request, plan.prompts)
        return [
            self._builder.build(request, prompt, check_prompt(prompt, tokens, params, self.contract), params)
            for prompt, tokens, params in zip(plan.prompts, ids, sampling, strict=True)
        ]

    def health_check(self) -> Ready[Prompt]:
        request = GenerateRequest(input_ids=[0])
        prompt = expand(request).prompts[0]
        if self.contract.features.disaggregation_mode != "null" or follows_rooms(self.contract):
            prompt.bootstrap_host, prompt.bootstrap_room = FAKE_HOST, 0
        sampling = normalize({"max_new_tokens": 1, "temperature": 0.0}, self.contract, self.tokenizer)
        return self._builder.build(request, prompt, check_prompt(prompt, [0], sampling, self.contract), sampling)

    def sample(self, request: GenerateRequest, item: Ready[Prompt], identity: Identity) -> Sample:
        prompt, warm_up = item.prompt, identity["warm_up"]
        logprobs = None
        if prompt.return_logprob and not warm_up:
            in_text = request.return_text_in_logprobs and self.tokenizer.loaded
            logprobs = Logprobs(
                top=prompt.top_logprobs_num,
                token_ids=prompt.token_ids_logprob is not None,
                texts=self.tokenizer.token_texts if in_text else None,
            )
        return Sample(
            **identity,
            facts=self.facts,
            stream=request.stream and not warm_up,
            logprobs=logprobs,
            prompt_token_ids=item.ids.tolist() if request.return_prompt_token_ids else None,
        )

    async def _tokenize(self, request: GenerateRequest, prompts: list[Prompt]) -> list[list[int]]:
        if request.input_ids is not None:
            return [prompt.input_ids or [] for prompt in prompts]
        ids = await self.tokenizer.encode_all([prompt.text or "" for prompt in prompts])
        if not all(ids):
            raise RequestRejected("The prompt is empty: it has no tokens.", param="text")
        return ids
