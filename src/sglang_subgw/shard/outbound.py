"""The way of a request to the engine: prompts made ready, samples made of them, frames sent."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from ..contract import EngineContract
from ..errors import RequestRejected
from ..wire.codec import Codec
from ..wire.message import Struct
from .adapters import Adapters
from .build import KIND, Builder, Ready
from .call import Call
from .checks import check_prompt
from .expand import Plan, Prompt, expand
from .logprobs import Logprobs
from .meta import AnswerFacts
from .request import GenerateRequest
from .rids import Rids
from .sample import Sample
from .sampling import normalize
from .table import Names, Table
from .tokenizer import ShardTokenizer

_BATCH: Final = "BatchTokenizedGenerateReqInput"
_FAKE_BOOTSTRAP_HOST: Final = "2.2.2.2"
"""SGLang's own: no prefill server has it."""


class Outbound:
    """One shard's outgoing requests."""

    def __init__(
        self,
        contract: EngineContract,
        tokenizer: ShardTokenizer,
        table: Table,
        codec: Codec,
        adapters: Adapters,
        *,
        rids: Rids,
        endpoint: str,
        send: Callable[[bytes], None],
        abort: Callable[[Sample], None],
    ) -> None:
        self._contract = contract
        self._tokenizer = tokenizer
        self._table = table
        self._codec = codec
        self._rids = rids
        self._builder = Builder(contract, endpoint)
        self._facts = AnswerFacts.of(contract)
        self._adapters = adapters
        table.on_removed = self._on_removed
        self._send = send
        self._abort = abort
        # With several data-parallel ranks SGLang's controller would send a whole batch to one of them.
        self._batches = _BATCH in contract.wire.schema and contract.features.num_dp_ranks <= 1

    async def prepare(self, request: GenerateRequest, plan: Plan) -> list[Ready]:
        """Each prompt checked and tokenized; raises RequestRejected."""
        sampling = [normalize(prompt.sampling_params, self._contract, self._tokenizer) for prompt in plan.prompts]
        ids = await self._tokenize(request, plan.prompts)
        return [
            self._builder.build(request, prompt, check_prompt(prompt, tokens, params, self._contract), params)
            for prompt, tokens, params in zip(plan.prompts, ids, sampling, strict=True)
        ]

    def set_weight_version(self, version: str | None) -> None:
        """What answers name from now on."""
        if version is not None:
            self._facts.weight_version = version

    def _on_removed(self, sample: Sample) -> None:
        if sample.lora_id is not None:
            self._adapters.release(sample.lora_id)

    async def warm_up(self, request: GenerateRequest, item: Ready, claimed: Names) -> None:
        """Let the engine read a prompt once before its samples: SGLang does, and `cached_tokens` shows it."""
        sample = self._sample(request, item, index=-1, public_id=None, created_at=None, warm_up=True)
        async with Call([sample], is_single=True, stream=False, abort=self._abort) as call:
            self._transmit([(sample, item)])
            self._table.add(sample, claimed, claimed.names)
            await call.wait()

    def dispatch(
        self, request: GenerateRequest, plan: Plan, ready: list[Ready], claimed: Names, created_at: float
    ) -> Call:
        """Send all samples of all prompts."""
        pairs: list[tuple[Sample, Ready]] = []
        for item in ready:
            public_id = item.prompt.rid if plan.samples == 1 else None
            for _ in range(plan.samples):
                pairs.append((self._sample(request, item, len(pairs), public_id, created_at), item))
        call = Call([sample for sample, _ in pairs], is_single=plan.is_single, stream=request.stream, abort=self._abort)
        self._transmit(pairs)
        for sample, item in pairs:
            self._table.add(sample, claimed, [name for name in (item.prompt.rid, plan.batch_name) if name is not None])
        return call

    def ask_for_one_token(self) -> None:
        """Send SGLang's health request; nobody waits for its own answer."""
        request = GenerateRequest(input_ids=[0])
        prompt = expand(request).prompts[0]
        if self._contract.features.disaggregation_mode != "null":
            prompt.bootstrap_host, prompt.bootstrap_room = _FAKE_BOOTSTRAP_HOST, 0
        sampling = normalize({"max_new_tokens": 1, "temperature": 0.0}, self._contract, self._tokenizer)
        ready = self._builder.build(request, prompt, check_prompt(prompt, [0], sampling, self._contract), sampling)
        self._send(self._codec.encode(KIND, ready.message(self._rids.next_health())))

    async def _tokenize(self, request: GenerateRequest, prompts: list[Prompt]) -> list[list[int]]:
        if request.input_ids is not None:
            return [prompt.input_ids or [] for prompt in prompts]
        ids = await self._tokenizer.encode_all([prompt.text or "" for prompt in prompts])
        if not all(ids):
            raise RequestRejected("The prompt is empty: it has no tokens.", param="text")
        return ids

    def _sample(
        self,
        request: GenerateRequest,
        item: Ready,
        index: int,
        public_id: str | None,
        created_at: float | None,
        *,
        warm_up: bool = False,
    ) -> Sample:
        prompt = item.prompt
        rid = self._rids.next()
        lora_id = None
        if prompt.lora_path is not None:
            # Looked up only now, and in use from now on: until here it may have been unloaded.
            lora_id = self._adapters.find(prompt.lora_path).lora_id
        logprobs = None
        if prompt.return_logprob and not warm_up:
            in_text = request.return_text_in_logprobs and self._tokenizer.loaded
            logprobs = Logprobs(
                top=prompt.top_logprobs_num,
                token_ids=prompt.token_ids_logprob is not None,
                texts=self._tokenizer.token_texts if in_text else None,
            )
        return Sample(
            rid,
            rid if public_id is None else public_id,
            index,
            self._facts,
            stream=request.stream and not warm_up,
            logprobs=logprobs,
            prompt_token_ids=item.ids.tolist() if request.return_prompt_token_ids else None,
            created_at=created_at,
            warm_up=warm_up,
            lora_id=lora_id,
        )

    def _transmit(self, pairs: list[tuple[Sample, Ready]]) -> None:
        """Everything is encoded before anything is sent: a request goes out whole or not at all."""
        messages = [item.message(sample.rid, lora_id=sample.lora_id, warm_up=sample.warm_up) for sample, item in pairs]
        if len(messages) > 1 and self._batches:
            frames = [self._codec.encode(_BATCH, {"batch": [Struct(KIND, fields) for fields in messages]})]
        else:
            frames = [self._codec.encode(KIND, fields) for fields in messages]
        for frame in frames:
            self._send(frame)
        for sample, _ in pairs:
            if sample.lora_id is not None:
                self._adapters.acquire(sample.lora_id)
        sent_at = time.perf_counter()
        for sample, _ in pairs:
            sample.sent_at = sent_at
