"""A process that is an engine without sglang: it feeds shards as fast as the wire allows, and costs next to nothing."""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from ..contract import EngineContract, Slot
from ..engine.coordinator import Coordinator
from ..engine.published import PublishedEngine
from ..engine.simulated.contract import simulated_contract
from ..engine.simulated.frames import frame_codec
from ..engine.simulated.structs import Struct, make
from ..engine.simulated.tokenizer import ByteTokenizer
from ..engine.simulated.transport import Transport
from ..engine.tokenization import SOCKET_NAME, TokenizationService
from ..gateway.runtime import make_runtime_dir, remove_runtime_dir
from .child import Parent
from .credit import Credit, messages_seen
from .engines import CONTEXT_LENGTH
from .frames import Frame, FrameMaker
from .pace import Pace

_STEPS_AHEAD: Final = 1
_CREDIT_SECONDS: Final = 0.001
"""How long to wait for a shard that is behind: less than it needs for what it has in hand, a step of 128 streams."""

_exhaust: Final[Callable[[Iterable[object]], None]] = deque[object](maxlen=0).extend
"""Go through an iterator, for what it does."""


class _Stream:
    """One request that runs."""

    __slots__ = ("ended", "frame", "limit", "request", "rid", "since", "streams")

    def __init__(self, request: Struct, since: int) -> None:
        limit = request.sampling_params.max_new_tokens
        self.request = request
        self.rid: str = request.rid
        self.streams: bool = request.stream
        self.limit: int = CONTEXT_LENGTH if limit is None else limit
        self.since = since
        """Its worker's steps before its first: it has made a token at each one since."""
        self.ended: dict[str, Any] | None = None
        self.frame: tuple[bytearray, int] | None = None
        """Its own, and where the number of its tokens is."""

    @property
    def ends_at(self) -> int:
        """The step of its last token."""
        return self.since + self.limit if self.ended is None else 0


class Worker:
    """One shard, and what runs for it.

    A shard is to be the dearest part of what is measured: what costs here for each token, it can't have the processor
    for. So a step calls nothing in Python for each of its streams.
    """

    def __init__(self, endpoint: str, transport: Transport, maker: FrameMaker, *, grouped: bool) -> None:
        self.endpoint = endpoint
        self.running: list[_Stream] = []
        self.slot: Slot | None = None
        self._steps = 0
        self._next_end = 0
        """The step at which the first of them ends."""
        self._sent = 0
        self._transport = transport
        self._maker = maker
        self._grouped = grouped
        self._since: list[int] | None = None
        """Of those that stream; None when there are others now."""
        self._frame: Frame | None = None
        self._data: list[bytearray] = []
        self._offsets: list[int] = []
        self._push: Callable[[bytes | bytearray], None] | None = None

    def add(self, request: Struct) -> None:
        """One more."""
        self.running.append(_Stream(request, self._steps))
        self._changed()

    def abort(self, rid: str) -> None:
        """End those whose ids begin so at the next step; "" means all."""
        for stream in self.running:
            if stream.rid.startswith(rid):
                stream.ended = {"type": "abort", "message": "Aborted", "status_code": None, "err_type": None}
                self._next_end = 0

    def send(self, frame: bytes | bytearray, role: str = "detokenizer") -> None:
        """Push a frame."""
        self._sent += 1
        self._transport.send(role, self.endpoint, frame)

    def keeps_up(self, slot: Slot) -> bool:
        """Whether it is no more than so many steps behind."""
        return self._sent - messages_seen(slot) <= _STEPS_AHEAD * (1 if self._grouped else len(self.running))

    def step(self) -> None:
        """A token for every request, and what there is to send."""
        self._steps += 1
        if self._steps >= self._next_end:
            self._end()
        if self._since is None:
            self._prepare()
        assert self._since is not None
        if not self._since:
            return
        steps = self._steps
        counts = [steps - since for since in self._since]
        if self._grouped:
            assert self._frame is not None
            self.send(self._frame.completed(counts))
            return
        if self._push is None:
            self._push = self._transport.sender("detokenizer", self.endpoint)
        _exhaust(map(self._maker.put, self._data, self._offsets, counts))
        _exhaust(map(self._push, self._data))
        self._sent += len(counts)

    def _changed(self) -> None:
        self._since = None
        self._next_end = min((stream.ends_at for stream in self.running), default=0)

    def _prepare(self) -> None:
        streaming = [stream for stream in self.running if stream.streams]
        self._since = [stream.since for stream in streaming]
        if self._grouped:
            if streaming:
                self._frame = self._maker.frame([stream.request for stream in streaming], grouped=True)
            return
        for stream in streaming:
            if stream.frame is None:
                stream.frame = self._maker.frame([stream.request], grouped=False).single()
        frames = [stream.frame for stream in streaming if stream.frame is not None]
        self._data = [data for data, _ in frames]
        self._offsets = [offset for _, offset in frames]

    def _end(self) -> None:
        going_on = []
        for stream in self.running:
            made = min(self._steps - stream.since, stream.limit)
            if stream.ended is None and made < stream.limit:
                going_on.append(stream)
                continue
            reason = stream.ended or {"type": "length", "length": stream.limit}
            unsent = 1 if stream.streams else made
            self.send(self._maker.last(stream.request, tokens=made, unsent=unsent, reason=reason))
        self.running = going_on
        self._changed()


class WireEngine:
    """Router, scheduler and detokenizer of scripted streams; what a gateway attaches to.

    With a pace it makes a step at each interval. Without one it makes the next as soon as a shard has taken in all but
    the last few: as fast as it goes, but no queue builds up whose tokens would be merged.
    """

    def __init__(self, directory: Path, pace: Pace, *, codec: str, grouped: bool) -> None:
        tokenizer = ByteTokenizer()
        self.contract: EngineContract = simulated_contract(
            directory, tokenizer, codec=codec, model={"context_length": CONTEXT_LENGTH}, features={}
        )
        self.tokenization = TokenizationService(str(directory / SOCKET_NAME), lambda: tokenizer)
        self.coordinator = Coordinator(self.contract.wire.coordinator, {})
        self._pace = pace
        self._grouped = grouped
        self._codec = frame_codec(codec)
        self._maker = FrameMaker(self._codec, codec, tokenizer)
        self._transport = Transport(self.contract.wire.worker_endpoint)
        self._workers: dict[str, Worker] = {}
        self._credit = Credit()
        self._stopping = False

    def on_death(self, callback: Callable[[str], object]) -> None:
        """Part of what is published; a process of the bench ends with it."""

    def stop(self) -> None:
        """End `run`; from any thread."""
        self._stopping = True
        self._transport.wake()

    def run(self) -> None:
        """One step after the other, until `stop`."""
        next_step = 0.0
        try:
            while not self._stopping:
                busy = [worker for worker in self._workers.values() if worker.running]
                wait = next_step - time.monotonic() if busy else None
                self._transport.wait(wait if wait is None else int(max(0.0, wait) * 1000) / 1000)
                self._receive()
                if not busy:
                    continue
                if not (interval := self._pace.seconds):
                    self._run_free(busy)
                elif (rest := next_step - time.monotonic()) <= 0.001:
                    time.sleep(max(0.0, rest))
                    next_step = max(next_step + interval, time.monotonic())
                    for worker in busy:
                        worker.step()
        finally:
            self._credit.close()
            self._transport.close(linger_ms=0)

    def _run_free(self, busy: list[Worker]) -> None:
        ready = [worker for worker in busy if worker.keeps_up(self._slot(worker))]
        for worker in ready:
            worker.step()
        if not ready:
            time.sleep(_CREDIT_SECONDS)

    def _slot(self, worker: Worker) -> Slot:
        if worker.slot is None:
            worker.slot = self._credit.slot(worker.endpoint)
        return worker.slot

    def _receive(self) -> None:
        while (frame := self._transport.receive()) is not None:
            self._handle(self._codec.decode(frame))

    def _worker(self, endpoint: str) -> Worker:
        if endpoint not in self._workers:
            self._workers[endpoint] = Worker(endpoint, self._transport, self._maker, grouped=self._grouped)
        return self._workers[endpoint]

    def _handle(self, message: Struct) -> None:
        match message.__struct_name__:
            case "TokenizerWorkerRegistrationReq":
                # A new life of the shard, or another gateway's in its place.
                self._workers.pop(message.worker_ipc_name, None)
                self._credit.forget(message.worker_ipc_name)
            case "TokenizedGenerateReqInput":
                self._worker(message.http_worker_ipc).add(message)
            case "BatchTokenizedGenerateReqInput":
                for item in message.batch:
                    self._worker(item.http_worker_ipc).add(item)
            case "AbortReq":
                for worker in self._workers.values():
                    worker.abort("" if message.abort_all else message.rid)
            case "FlushCacheReqInput":
                idle = not any(worker.running for worker in self._workers.values())
                self._answer(message, "FlushCacheReqOutput", success=idle)
            case "GetInternalStateReq":
                self._answer(message, "GetInternalStateReqOutput", internal_state={})

    def _answer(self, request: Struct, kind: str, /, **fields: Any) -> None:
        endpoint = request.http_worker_ipc
        frame = self._codec.encode(make(kind, http_worker_ipc=endpoint, **fields))
        self._worker(endpoint).send(frame, "router")


def main() -> int:
    """Be an engine until the bench closes."""
    parent = Parent()
    settings = parent.settings()
    with ExitStack() as stack:
        directory = make_runtime_dir()
        stack.callback(remove_runtime_dir, directory)
        pace = stack.enter_context(Pace(settings["pace"]))
        engine = WireEngine(directory, pace, codec=settings["codec"], grouped=settings["grouped"])
        engine.tokenization.start()
        engine.coordinator.start()
        try:
            with PublishedEngine(engine) as published:
                parent.say(segment=published.name)
                threading.Thread(target=_stop_with_parent, args=(parent, engine)).start()
                engine.run()
        finally:
            engine.coordinator.close()
            engine.tokenization.close()
    return 0


def _stop_with_parent(parent: Parent, engine: WireEngine) -> None:
    for _ in parent.messages():
        pass
    engine.stop()


if __name__ == "__main__":
    sys.exit(main())
