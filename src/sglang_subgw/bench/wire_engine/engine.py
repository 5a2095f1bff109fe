"""A process that is an engine without sglang: it feeds shards as fast as the wire allows, and costs next to nothing."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from ...contract import EngineContract, Slot
from ...coordination.server import Coordinator
from ...engine.attach.published import PublishedEngine
from ...engine.scripted.pace import Pace
from ...errors import WireError
from ...gateway.runtime import make_runtime_dir, remove_runtime_dir
from ...simulated.contract import simulated_contract
from ...simulated.tokenizer import ByteTokenizer
from ...simulated.wire.frames import frame_codec
from ...simulated.wire.structs import StandIn, make
from ...simulated.wire.transport import Transport
from ...tokenization.server import SOCKET_NAME, TokenizationService
from ..engines import CONTEXT_LENGTH
from ..system.child import Parent
from .credit import Credit
from .feed import Worker, connect
from .frames import FrameMaker

_FREE_SECONDS: Final = 0.02
"""How long it looks at nothing but how far the shards are: receiving costs time that they could use."""


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
                        self._step(worker)
        finally:
            for worker in self._workers.values():
                worker.close()
            self._credit.close()
            self._transport.close(linger_ms=0)

    def _run_free(self, busy: list[Worker]) -> None:
        until = time.monotonic() + _FREE_SECONDS
        while time.monotonic() < until:
            ready = [worker for worker in busy if worker.running and worker.keeps_up(self._slot(worker))]
            if not all(self._step(worker) for worker in ready):
                return
            if not ready:
                time.sleep(min(worker.wait_seconds() for worker in busy))

    def _step(self, worker: Worker) -> bool:
        """False when its shard is gone."""
        try:
            worker.step()
        except OSError as exc:
            _say_lost(worker.endpoint, exc)
            self._forget(worker.endpoint)
            return False
        return True

    def _forget(self, endpoint: str) -> None:
        if (worker := self._workers.pop(endpoint, None)) is not None:
            worker.close()

    def _slot(self, worker: Worker) -> Slot:
        if worker.slot is None:
            worker.slot = self._credit.slot(worker.endpoint)
        return worker.slot

    def _receive(self) -> None:
        while (frame := self._transport.receive()) is not None:
            self._handle(self._codec.decode(frame))

    def _worker(self, endpoint: str) -> Worker | None:
        """The one that feeds this shard; None if the shard has gone since it asked."""
        if endpoint not in self._workers:
            try:
                sock = connect(endpoint)
            except (OSError, WireError) as exc:
                _say_lost(endpoint, exc)
                return None
            self._workers[endpoint] = Worker(endpoint, sock, self._maker, grouped=self._grouped)
        return self._workers[endpoint]

    def _begin(self, request: StandIn) -> None:
        if (worker := self._worker(request.http_worker_ipc)) is not None:
            worker.add(request)

    def _handle(self, message: StandIn) -> None:
        match message.__struct_name__:
            case "TokenizerWorkerRegistrationReq":
                # A new life of the shard, or another gateway's in its place.
                self._forget(message.worker_ipc_name)
                self._credit.forget(message.worker_ipc_name)
            case "TokenizedGenerateReqInput":
                self._begin(message)
            case "BatchTokenizedGenerateReqInput":
                for item in message.batch:
                    self._begin(item)
            case "AbortReq":
                for worker in self._workers.values():
                    worker.abort("" if message.abort_all else message.rid)
            case "FlushCacheReqInput":
                idle = not any(worker.running for worker in self._workers.values())
                self._answer(message, "FlushCacheReqOutput", success=idle)
            case "GetInternalStateReq":
                self._answer(message, "GetInternalStateReqOutput", internal_state={})

    def _answer(self, request: StandIn, kind: str, /, **fields: Any) -> None:
        endpoint = request.http_worker_ipc
        frame = self._codec.encode(make(kind, http_worker_ipc=endpoint, **fields))
        if (worker := self._worker(endpoint)) is not None:
            try:
                worker.send(frame)
            except OSError as exc:
                _say_lost(endpoint, exc)


def _say_lost(endpoint: str, reason: Exception) -> None:
    # The next gateway wants this engine.
    print(f"The shard at {endpoint} can't be fed: {reason}", file=sys.stderr)


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
