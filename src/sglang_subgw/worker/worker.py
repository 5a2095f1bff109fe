"""A shard's TokenizerWorker: it sends its clients' requests to the engine and gives them the outputs back."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..contract import EngineContract, Slot, Word
from ..contract.rids import Rids
from ..coordination.bootstrap_rooms import BootstrapRooms
from ..coordination.client import Coordination
from ..coordination.finishing import Finishing
from ..coordination.gate import Gate
from ..errors import EngineRejected, EngineUnavailable, RequestError, RequestRejected, WireError
from ..tokenization.tokenizer import ShardTokenizer
from ..wire.codec import codec_for
from ..wire.sockets import WorkerSocket
from .adapters import LoraAdapters
from .answers.sample import Sample
from .call import Call
from .control import ControlClient
from .health_checks import HealthChecks
from .lora import Lora
from .outbound import Outbound
from .requests.request import EmbeddingRequest, GenerateRequest
from .table import SampleTable

log = logging.getLogger("sglang_subgw.shard")


class TokenizerWorker:
    """One shard's worker, on the event loop that `start` runs on."""

    def __init__(self, contract: EngineContract, slot: Slot, shard_index: int, generation: int) -> None:
        self.contract = contract
        self.tokenizer = ShardTokenizer(contract)
        # A restarted shard takes its predecessor's name, for the router never forgets one.
        self.endpoint = f"ipc://{Path(contract.wire.socket_dir) / f'shard-{shard_index}.ipc'}"
        self.last_receive = 0.0
        """time.monotonic() of the last message from the engine, 0 before the first."""
        self.undecodable = 0
        """Frames that could not be read; each is dropped."""
        self.control = ControlClient(self.send, contract.features.num_dp_ranks)
        self.coordination = Coordination(contract.wire.coordinator, Path(self.endpoint).name)
        self.coordination.on_state = self._on_state
        self.coordination.handlers["idle"] = self._until_idle
        self.coordination.handlers["unused"] = self._until_unused
        self.gate = Gate()
        self.finishing = Finishing()
        self.adapters = LoraAdapters()
        self.lora = Lora(self.coordination, self.control, self.adapters, self.finishing, contract.features)
        self.weights: dict[str, Any] = {}
        """The weights that the engine has now: `version`, `model_path`, `load_format`."""
        self.endings: set[Callable[[str], None]] = set()
        """Called with the reason when the engine is gone, or this worker leaves it."""
        self._slot = slot
        self._codec = codec_for(contract.wire)
        self._rooms = BootstrapRooms(contract.wire.runtime_dir)
        self._table = SampleTable(slot, self._rooms)
        rids = Rids(contract.gateway_id, shard_index, generation)
        self._health_checks = HealthChecks(rids.prefix)
        self._outbound = Outbound(
            contract,
            self.tokenizer,
            self._table,
            self._codec,
            self.adapters,
            rids=rids,
            endpoint=self.endpoint,
            send=self._send_frame,
            abort=self.abort_sample,
        )
        self._loop: asyncio.AbstractEventLoop | None = None
        self._socket: WorkerSocket | None = None
        self._failure: RequestError | None = None
        self._listeners: set[asyncio.Future[None]] = set()
        self._news: dict[Sample, None] = {}
        """Samples with outputs of this wake-up, in the order in which these came."""
        self._handlers: dict[str, Callable[[dict[str, Any]], None]] = {
            "BatchStrOutput": self._on_outputs,
            "BatchTokenIDOutput": self._on_outputs,
            "BatchEmbeddingOutput": self._on_outputs,
            "AbortReq": self._on_abort,
            "PauseContinueBroadcastReq": self._on_pause,
            "HealthCheckOutput": lambda fields: self._health_checks.end_one(),
        }

    @property
    def active(self) -> int:
        """Sub-requests in the engine now."""
        return len(self._table)

    @property
    def occupying(self) -> int:
        """The same, with health checks."""
        return len(self._table) + self._health_checks.open

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop that it runs on, once started."""
        assert self._loop is not None
        return self._loop

    async def start(self, on_failure: Callable[[Exception], None] | None = None) -> None:
        """Open the sockets, receive, register; raises WireError or EngineUnavailable when that can't be.

        `on_failure` is called when nothing can be received any more.
        """
        self._loop = asyncio.get_running_loop()
        self._socket = WorkerSocket(self.contract.wire, self.endpoint, self._loop)
        # Before registering: a pause that is broadcast at once must be heard.
        self._socket.start(self._on_frames, on_failure)
        await self.coordination.start()
        self.send("TokenizerWorkerRegistrationReq", {"worker_ipc_name": self.endpoint})

    def look(self) -> None:
        """See to what a lost wake-up may have left; raises WireError when nothing can be received any more."""
        if self._socket is not None:
            self._socket.look()

    async def submit(self, request: GenerateRequest | EmbeddingRequest) -> Call:
        """Check, tokenize and send; raises RequestRejected or EngineUnavailable with nothing left behind."""
        created_at = request.received_time or time.perf_counter()
        self.check_open()
        family = self._outbound.family_of(request)
        plan = family.plan(request)
        claimed = self._table.claim(plan.names, plan.rooms)
        try:
            ready = await family.prepare(request, plan)
            adapters = {prompt.lora_path for prompt in plan.prompts if prompt.lora_path} if request.lora_path else set()
            if plan.samples > 1:
                for item in ready:
                    await self._may_send(adapters)
                    await self._outbound.warm_up(request, item, claimed)
            await self._may_send(adapters)
            self.check_open()
            return self._outbound.dispatch(request, plan, ready, claimed, created_at)
        except WireError as exc:
            # The codec's own check is the last one: what fails it would have ended the engine's router.
            raise RequestRejected(str(exc)) from exc
        finally:
            self._table.release(claimed)

    async def _may_send(self, adapters: set[str]) -> None:
        """Until the gate is open and these adapters are loaded, both at once."""
        while True:
            await self.gate.passed()
            if adapters <= self.adapters.loaded.keys():
                return
            await self.lora.ensure(adapters)

    def abort(self, rid: str) -> bool:
        """Abort what a client's rid, or one of the engine's, means; False if nothing here does."""
        for sample in self._table.find(rid):
            self.abort_sample(sample)
        return self._table.knows(rid)

    def abort_all(self) -> None:
        """Abort everything in the engine, of every shard."""
        self.check_open()
        self.send("AbortReq", {"rid": "", "abort_all": True})

    def abort_sample(self, sample: Sample) -> None:
        """Abort one sample in the engine, once; it ends when the engine has answered."""
        if sample.abort_sent or self._table.get(sample.rid) is None or self._failure is not None:
            return
        sample.abort_sent = True
        self.send("AbortReq", {"rid": sample.rid})

    async def health(self, timeout: float) -> bool:
        """Ask for the least there is; True when anything at all arrives within `timeout` seconds.

        An engine that may not be sent requests is asked for its state.
        """
        if self._failure is not None or self._socket is None:
            return False
        heard: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._listeners.add(heard)
        try:
            if not self.gate.is_open:
                await self.control.ask("GetInternalStateReq", {}, "GetInternalStateReqOutput", timeout)
                return True
            self._health_checks.begin()
            self._outbound.check_health()
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
            self.gate.give_up()
            self._tell_ending(error.message)
            self._health_checks.end_all()
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
        self.gate.give_up()
        self._tell_ending(self._failure.message)
        try:
            await self.coordination.close()
            await self.finishing.ended()
        finally:
            # Also in a loop that is being closed, which cancels what it finds: a zmq context outlives its loop.
            if self._socket is not None:
                self._socket.close()
                self._socket = None
            self._rooms.close()
            self.tokenizer.close()

    def check_open(self) -> None:
        """Raise EngineUnavailable unless requests can be sent."""
        if self._failure is not None:
            # A new one each time: a shared exception would collect the tracebacks of all that it met.
            raise EngineUnavailable(self._failure.message)
        if self._socket is None:
            raise EngineUnavailable("The shard is not connected to an engine.")

    def send(self, kind: str, fields: dict[str, Any]) -> None:
        """Send one message that isn't a request; raises RequestRejected for fields that the engine must not see.

        Raises EngineUnavailable when it is gone.
        """
        self.check_open()
        self._send_frame(self._encoded(kind, fields))

    def check(self, kind: str, fields: dict[str, Any]) -> None:
        """Raise RequestRejected for what `send` would."""
        self._encoded(kind, fields)

    def _encoded(self, kind: str, fields: dict[str, Any]) -> bytes:
        try:
            return self._codec.encode(kind, {"http_worker_ipc": self.endpoint, **fields})
        except WireError as exc:
            raise RequestRejected(str(exc)) from exc

    def _send_frame(self, frame: bytes) -> None:
        if self._socket is None:
            raise EngineUnavailable("The shard is not connected to an engine.")
        self._socket.send(frame)

    def _on_frames(self, frames: list[bytes]) -> None:
        """All messages of one wake-up; a sample is announced once, with everything that they hold for it."""
        self.last_receive = time.monotonic()
        self._slot.add(Word.MESSAGES, len(frames))
        if self._listeners:
            self._wake_listeners()
        for frame in frames:
            self._on_frame(frame)
        news, self._news = self._news, {}
        for sample in news:
            try:
                sample.announce()
            except Exception as exc:  # The others have nothing to do with it.
                log.exception("An output could not be passed on.")
                self.abort_sample(sample)
                sample.fail(EngineRejected(f"The answer could not be passed on: {exc}"))

    def _on_frame(self, frame: bytes) -> None:
        try:
            message = self._codec.decode(frame)
            handler = self._handlers.get(message.kind)
            if handler is not None:
                handler(message.fields)
            elif not self.control.on_answer(message.kind, message.fields):
                log.debug("A message %s came unasked.", message.kind)
        except Exception as exc:  # Whatever a frame holds, the next one must be read.
            self.undecodable += 1
            self._slot.add(Word.UNDECODABLE)
            if self.undecodable == 1:
                log.error("A frame from the engine was dropped; later ones are only counted. %r", exc)

    def _on_outputs(self, columns: dict[str, Any]) -> None:
        rids = columns["rids"]
        find, news = self._table.get, self._news
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
            news[sample] = None
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
        self.gate.set(paused=bool(fields.get("is_pause")))

    def _on_state(self, state: dict[str, Any]) -> None:
        # Without its memory an engine would end at a request's first step.
        self.gate.set(paused=state.get("paused"), held=bool(state.get("held") or state.get("released")))
        self.adapters.replace(state.get("adapters") or ())
        self.weights = state.get("weights") or {}
        self._outbound.set_weight_version(self.weights.get("version"))

    async def _until_idle(self, body: dict[str, Any]) -> None:
        await self._table.emptied()
        await self._health_checks.ended()

    async def _until_unused(self, body: dict[str, Any]) -> None:
        await self.adapters.unused(body["lora_id"])

    def _on_unknown(self, rid: str) -> None:
        if not self._health_checks.end(rid):
            self._slot.add(Word.UNKNOWN_RIDS)

    def _tell_ending(self, reason: str) -> None:
        for tell in self.endings:
            tell(reason)

    def _wake_listeners(self) -> None:
        for heard in self._listeners:
            if not heard.done():
                heard.set_result(None)
        self._listeners.clear()
