"""A process that is an engine without sglang: it feeds shards as fast as the wire allows, and costs next to nothing."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
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
from .credit import Credit
from .engines import CONTEXT_LENGTH
from .feed import Worker
from .frames import FrameMaker
from .pace import Pace

_CREDIT_SECONDS: Final = 0.001
"""How long to wait for a shard that is behind: less than it needs for what it has in hand, a step of 128 streams."""


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
