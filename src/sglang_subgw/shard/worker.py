"""A shard's TokenizerWorker: it sends its clients' requests to the engine and gives them the outputs back."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from ..contract import EngineContract, Slot, Word
from ..errors import EngineRejected, EngineUnavailable, RequestError, RequestRejected, WireError
from ..wire.codec import codec_for
from ..wire.message import Struct
from ..wire.sockets import WorkerSocket
from .build import KIND, Builder, Ready
from .call import Call
from .checks import check_prompt, check_request
from .control import Control
from .expand import Plan, Prompt, expand
from .logprobs import Logprobs
from .meta import AnswerFacts
from .request import GenerateRequest
from .rids import HEALTH_CHECK, Rids
from .sample import Sample
from .sampling import normalize
from .table import Names, Table
from .tokenizer import ShardTokenizer

log = logging.getLogger("sglang_subgw.shard")

_BATCH: Final = "BatchTokenizedGenerateReqInput"


class TokenizerWorker:
    """One shard's worker, on the event loop that `start` runs on."""

    def __init__(self, contract: EngineContract, slot: Slot, shard_index: int, generation: int) -> None:
        self.contract = contract
        self.tokenizer = ShardTokenizer(contract)
        # A restarted shard takes its predecessor's name, for the router never forgets one.
        self.endpoint = f"ipc://{Path(contract.wire.runtime_dir) / f'shard-{shard_index}.ipc'}"
        self.last_receive = 0.0
        """time.monotonic() of the last message from the engine, 0 before the first."""
        self.undecodable = 0
        """Frames that could not be read; each is dropped."""
        self.control = Control(self._send, contract.features.num_dp_ranks)
        self._slot = slot
        self._codec = codec_for(contract.wire)
        self._rids = Rids(contract.engine_id, shard_index, generation)
        self._builder = Builder(contract, self.endpoint)
        self._facts = AnswerFacts.of(contract)
        self._table = Table(slot)
        self._socket: WorkerSocket | None = None
        self._failure: RequestError | None = None
        self._running = asyncio.Event()
        self._running.set()
        self._listeners: set[asyncio.Future[None]] = set()
        self._batches = _BATCH in contract.wire.schema and contract.features.num_dp_ranks <= 1
        self._handlers: dict[str, Callable[[dict[str, Any]], None]] = {
            "BatchStrOutput": self._on_outputs,
            "BatchTokenIDOutput": self._on_outputs,
            "AbortReq": self._on_abort,
            "PauseContinueBroadcastReq": self._on_pause,
            "HealthCheckOutput": _ignore,
        }

    @property
    def active(self) -> int:
        """Sub-requests in the engine now."""
        return len(self._table)

    @property
    def paused(self) -> bool:
        """The engine was told to pause: new requests wait."""
        return not self._running.is_set()

    async def start(self) -> None:
        """Open the sockets, receive, register; raises WireError when that can't be."""
        self._socket = WorkerSocket(self.contract.wire, self.endpoint, asyncio.get_running_loop())
        # Before registering: a pause that is broadcast at once must be heard.
        self._socket.start(self._on_frame)
        self._send("TokenizerWorkerRegistrationReq", {"worker_ipc_name": self.endpoint})

    async def submit(self, request: GenerateRequest) -> Call:
        """Check, tokenize and send; raises RequestRejected or EngineUnavailable with nothing left behind."""
        created_at = request.received_time or time.perf_counter()
        self._check_open()
        check_request(request, self.contract)
        plan = expand(request)
        claimed = self._table.claim(_names(plan))
        try:
            ready = await self._prepare(request, plan)
            await self._running.wait()
            if plan.samples > 1:
                for item in ready:
                    await self._warm_up(request, item, claimed)
            self._check_open()
            return self._dispatch(request, plan, ready, claimed, created_at)
        except WireError as exc:
            # The codec's own check is the last one: what fails it would have ended the engine's router.
            raise RequestRejected(str(exc)) from exc
        finally:
            self._table.release(claimed)

    def abort(self, rid: str) -> bool:
        """Abort what a client's rid, or one of the engine's, means; False if nothing here does."""
        for sample in self._table.find(rid):
            self.abort_sample(sample)
        return self._table.knows(rid)

    def abort_all(self) -> None:
        """Abort everything in the engine, of every shard."""
        self._check_open()
        self._send("AbortReq", {"rid": "", "abort_all": True})

    def abort_sample(self, sample: Sample) -> None:
        """Abort one sample in the engine, once; it ends when the engine has answered."""
        if sample.abort_sent or self._table.get(sample.rid) is None or self._failure is not None:
            return
        sample.abort_sent = True
        self._send("AbortReq", {"rid": sample.rid})

    async def health(self, timeout: float) -> bool:
        """Ask for one token; True when anything at all arrives within `timeout` seconds."""
        if self._failure is not None or self._socket is None:
            return False
        heard: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._listeners.add(heard)
        try:
            self._send(KIND, self._health_request())
            async with asyncio.timeout(timeout):
                await heard
        except (TimeoutError, EngineUnavailable):
            return False
        finally:
            self._listeners.discard(heard)
        return self._failure is None

    def fail_all(self, error: RequestError, *, for_good: bool = False) -> None:
        """End everything in flight with `error`; `for_good` (the engine is gone) also what still comes."""
        if for_good:
            self._failure = error
            self.control.fail(error)
            # What waits for the engine to go on learns that it won't.
            self._running.set()
        for sample in self._table:
            if not for_good:
                self.abort_sample(sample)
            sample.fail(error)
            self._table.remove(sample)
        if for_good:
            self._wake_listeners()

    async def close(self) -> None:
        """Leave the engine: nothing of this shard's stays behind, neither in the engine nor on disk."""
        self.fail_all(EngineUnavailable("The server is stopping."), for_good=self._socket is None)
        self._failure = self._failure or EngineUnavailable("The server is stopping.")
        self.control.fail(self._failure)
        self._running.set()
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        self.tokenizer.close()

    def _check_open(self) -> WorkerSocket:
        if self._failure is not None:
            # A new one each time: a shared exception would collect the tracebacks of all that it met.
            raise EngineUnavailable(self._failure.message)
        if self._socket is None:
            raise EngineUnavailable("The shard is not connected to an engine.")
        return self._socket

    async def _prepare(self, request: GenerateRequest, plan: Plan) -> list[Ready]:
        sampling = [normalize(prompt.sampling_params, self.contract, self.tokenizer) for prompt in plan.prompts]
        ids = await self._tokenize(request, plan.prompts)
        return [
            self._builder.build(request, prompt, check_prompt(prompt, tokens, params, self.contract), params)
            for prompt, tokens, params in zip(plan.prompts, ids, sampling, strict=True)
        ]

    async def _tokenize(self, request: GenerateRequest, prompts: list[Prompt]) -> list[list[int]]:
        if request.input_ids is not None:
            return [prompt.input_ids or [] for prompt in prompts]
        ids = await self.tokenizer.encode_all([prompt.text or "" for prompt in prompts])
        if not all(ids):
            raise RequestRejected("The prompt is empty: it has no tokens.", param="text")
        return ids

    async def _warm_up(self, request: GenerateRequest, item: Ready, claimed: Names) -> None:
        """Let the engine read a prompt once before its samples: SGLang does, and `cached_tokens` shows it."""
        sample = self._sample(request, item, index=-1, public_id=None, created_at=None, warm_up=True)
        call = Call([sample], is_single=True, stream=False, abort=self.abort_sample)
        async with call:
            self._transmit(self._frames([(sample, item)]), [sample])
            self._table.add(sample, claimed, claimed.names)
            await call.wait()

    def _dispatch(
        self, request: GenerateRequest, plan: Plan, ready: list[Ready], claimed: Names, created_at: float
    ) -> Call:
        pairs: list[tuple[Sample, Ready]] = []
        for item in ready:
            name = item.prompt.rid
            for _ in range(plan.samples):
                public_id = name if plan.samples == 1 else None
                sample = self._sample(request, item, len(pairs), public_id, created_at)
                pairs.append((sample, item))
        samples = [sample for sample, _ in pairs]
        call = Call(samples, is_single=plan.is_single, stream=request.stream, abort=self.abort_sample)
        self._transmit(self._frames(pairs), samples)
        for sample, item in pairs:
            self._table.add(sample, claimed, [name for name in (item.prompt.rid, plan.batch_name) if name is not None])
        return call

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
        logprobs = None
        if prompt.return_logprob and not warm_up:
            texts = self.tokenizer.token_texts if request.return_text_in_logprobs and self.tokenizer.loaded else None
            logprobs = Logprobs(
                top=prompt.top_logprobs_num, token_ids=prompt.token_ids_logprob is not None, texts=texts
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
        )

    def _frames(self, pairs: list[tuple[Sample, Ready]]) -> list[bytes]:
        """Everything is encoded before anything is sent: a request goes out whole or not at all."""
        messages = [item.message(sample.rid, warm_up=sample.warm_up) for sample, item in pairs]
        if len(messages) > 1 and self._batches:
            return [self._codec.encode(_BATCH, {"batch": [Struct(KIND, fields) for fields in messages]})]
        return [self._codec.encode(KIND, fields) for fields in messages]

    def _transmit(self, frames: list[bytes], samples: list[Sample]) -> None:
        socket = self._check_open()
        for frame in frames:
            socket.send(frame)
        sent_at = time.perf_counter()
        for sample in samples:
            sample.sent_at = sent_at

    def _health_request(self) -> dict[str, Any]:
        prompt = expand(GenerateRequest(input_ids=[0])).prompts[0]
        if self.contract.features.disaggregation_mode != "null":
            prompt.bootstrap_host, prompt.bootstrap_room = _FAKE_BOOTSTRAP_HOST, 0
        sampling = normalize({"max_new_tokens": 1, "temperature": 0.0}, self.contract, self.tokenizer)
        ids = check_prompt(prompt, [0], sampling, self.contract)
        return self._builder.build(GenerateRequest(input_ids=[0]), prompt, ids, sampling).message(
            self._rids.next_health()
        )

    def _send(self, kind: str, fields: dict[str, Any]) -> None:
        if self._socket is None:
            raise EngineUnavailable("The shard is not connected to an engine.")
        self._socket.send(self._codec.encode(kind, {"http_worker_ipc": self.endpoint, **fields}))

    def _on_frame(self, frame: bytes) -> None:
        self.last_receive = time.monotonic()
        self._slot.add(Word.MESSAGES)
        if self._listeners:
            self._wake_listeners()
        try:
            message = self._codec.decode(frame)
        except WireError as exc:
            self.undecodable += 1
            if self.undecodable == 1:
                log.error("A frame from the engine was dropped; later ones are only counted. %s", exc)
            return
        handler = self._handlers.get(message.kind)
        if handler is not None:
            handler(message.fields)
        elif not self.control.on_answer(message.kind, message.fields):
            log.debug("A message %s came unasked.", message.kind)

    def _on_outputs(self, columns: dict[str, Any]) -> None:
        rids = columns["rids"]
        find = self._table.get
        for row, rid in enumerate(rids):
            sample = find(rid)
            if sample is None:
                self._on_unknown(rid)
                continue
            try:
                sample.on_output(columns, row)
            except Exception as exc:  # One malformed row must not cost the other samples their outputs.
                log.exception("An output of the engine could not be used.")
                self.abort_sample(sample)
                sample.fail(EngineRejected(f"The engine's output could not be used: {exc}"))
            if sample.finished:
                self._table.remove(sample)
        self._slot.add(Word.CHUNKS, len(rids))

    def _on_abort(self, fields: dict[str, Any]) -> None:
        rid = fields.get("rid") or ""
        sample = self._table.get(rid)
        if sample is None:
            self._on_unknown(rid)
            return
        sample.on_abort(fields)
        self._table.remove(sample)

    def _on_pause(self, fields: dict[str, Any]) -> None:
        if fields.get("is_pause"):
            self._running.clear()
        else:
            self._running.set()

    def _on_unknown(self, rid: str) -> None:
        if not rid.startswith(HEALTH_CHECK):
            self._slot.add(Word.UNKNOWN_RIDS)

    def _wake_listeners(self) -> None:
        for heard in self._listeners:
            if not heard.done():
                heard.set_result(None)
        self._listeners.clear()


_FAKE_BOOTSTRAP_HOST: Final = "2.2.2.2"
"""SGLang's own: no prefill server has it."""


def _ignore(fields: dict[str, Any]) -> None:
    """A sign of life, and nothing more."""


def _names(plan: Plan) -> list[str]:
    names = [prompt.rid for prompt in plan.prompts if prompt.rid is not None]
    return names if plan.batch_name is None else [*names, plan.batch_name]
