"""The way of a request to the engine: prompts made ready, samples made of them, frames sent."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from ..contract import EngineContract
from ..contract.rids import Rids
from ..tokenization.tokenizer import ShardTokenizer
from ..wire.codec import Codec
from ..wire.message import Struct
from .adapters import LoraAdapters
from .answers.facts import AnswerFacts
from .answers.sample import Sample
from .call import Call
from .families.embedding import EmbeddingFamily
from .families.family import Identity, RequestFamily
from .families.generation import GenerationFamily
from .requests.plan import RequestPlan
from .requests.ready import Ready
from .requests.request import EmbeddingRequest, GenerateRequest
from .table import Names, SampleTable

type Request = GenerateRequest | EmbeddingRequest


class Outbound:
    """One shard's outgoing requests."""

    def __init__(
        self,
        contract: EngineContract,
        tokenizer: ShardTokenizer,
        table: SampleTable,
        codec: Codec,
        adapters: LoraAdapters,
        *,
        rids: Rids,
        endpoint: str,
        send: Callable[[bytes], None],
        abort: Callable[[Sample], None],
    ) -> None:
        self._table = table
        self._codec = codec
        self._rids = rids
        self._facts = AnswerFacts.of(contract)
        self._generation = GenerationFamily(contract, tokenizer, self._facts, endpoint)
        self._embedding = EmbeddingFamily(contract, tokenizer, self._facts, endpoint)
        self._health: RequestFamily[Any, Any] = self._generation if contract.model.is_generation else self._embedding
        self._adapters = adapters
        table.on_removed = self._on_removed
        self._send = send
        self._abort = abort

    def family_of(self, request: Request) -> RequestFamily[Any, Any]:
        """What knows requests of this type."""
        return self._generation if isinstance(request, GenerateRequest) else self._embedding

    def set_weight_version(self, version: str | None) -> None:
        """What answers name from now on."""
        if version is not None:
            self._facts.weight_version = version

    async def warm_up(self, request: Request, item: Ready[Any], claimed: Names) -> None:
        """Let the engine read a prompt once before its samples: SGLang does, and `cached_tokens` shows it."""
        family = self.family_of(request)
        sample = self._sample(family, request, item, index=-1, public_id=None, created_at=None, warm_up=True)
        async with Call([sample], is_single=True, stream=False, abort=self._abort) as call:
            self._transmit(family, [(sample, item)])
            self._table.add(sample, claimed, claimed.names)
            await call.wait()

    def dispatch(
        self, request: Request, plan: RequestPlan[Any], ready: list[Ready[Any]], claimed: Names, created_at: float
    ) -> Call:
        """Send all samples of all prompts."""
        family = self.family_of(request)
        pairs: list[tuple[Sample, Ready[Any]]] = []
        for item in ready:
            public_id = item.prompt.rid if plan.samples == 1 else None
            for _ in range(plan.samples):
                pairs.append((self._sample(family, request, item, len(pairs), public_id, created_at), item))
        stream = any(sample.stream for sample, _ in pairs)
        call = Call([sample for sample, _ in pairs], is_single=plan.is_single, stream=stream, abort=self._abort)
        self._transmit(family, pairs)
        for sample, item in pairs:
            self._table.add(sample, claimed, [name for name in (item.prompt.rid, plan.batch_name) if name is not None])
        return call

    def check_health(self) -> None:
        """Send SGLang's health request; nobody waits for its own answer."""
        item = self._health.health_check()
        self._send(self._codec.encode(self._health.kind, item.message(self._rids.next_health())))

    def _on_removed(self, sample: Sample) -> None:
        if sample.lora_id is not None:
            self._adapters.release(sample.lora_id)

    def _sample(
        self,
        family: RequestFamily[Any, Any],
        request: Request,
        item: Ready[Any],
        index: int,
        public_id: str | None,
        created_at: float | None,
        *,
        warm_up: bool = False,
    ) -> Sample:
        rid = self._rids.next()
        lora_id = None
        if item.prompt.lora_path is not None:
            # Looked up only now, and in use from now on: until here it may have been unloaded.
            lora_id = self._adapters.find(item.prompt.lora_path).lora_id
        identity: Identity = {
            "rid": rid,
            "public_id": rid if public_id is None else public_id,
            "index": index,
            "created_at": created_at,
            "warm_up": warm_up,
            "lora_id": lora_id,
        }
        return family.sample(request, item, identity)

    def _transmit(self, family: RequestFamily[Any, Any], pairs: list[tuple[Sample, Ready[Any]]]) -> None:
        """Everything is encoded before anything is sent: a request goes out whole or not at all."""
        messages = [item.message(sample.rid, lora_id=sample.lora_id, warm_up=sample.warm_up) for sample, item in pairs]
        if len(messages) > 1 and family.batches:
            batch = [Struct(family.kind, fields) for fields in messages]
            frames = [self._codec.encode(family.batch_kind, {"batch": batch})]
        else:
            frames = [self._codec.encode(family.kind, fields) for fields in messages]
        for frame in frames:
            self._send(frame)
        for sample, _ in pairs:
            if sample.lora_id is not None:
                self._adapters.acquire(sample.lora_id)
        sent_at = time.perf_counter()
        for sample, _ in pairs:
            sample.sent_at = sent_at
