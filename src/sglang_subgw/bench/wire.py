"""A process that is an engine without sglang: it feeds shards as fast as the wire allows, and costs next to nothing."""

from __future__ import annotations

import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..contract import EngineContract
from ..engine.published import PublishedEngine
from ..engine.simulated.contract import simulated_contract
from ..engine.simulated.frames import frame_codec
from ..engine.simulated.structs import Struct, make
from ..engine.simulated.tokenizer import ByteTokenizer
from ..engine.simulated.transport import Transport
from ..engine.tokenization import SOCKET_NAME, TokenizationService
from .child import Parent
from .engines import CONTEXT_LENGTH
from .frames import Frame, FrameMaker
from .pace import Pace


class _Stream:
    """One request that runs."""

    __slots__ = ("ended", "frame", "limit", "made", "request", "rid", "sent", "streams", "worker")

    def __init__(self, request: Struct) -> None:
        limit = request.sampling_params.max_new_tokens
        self.request = request
        self.rid: str = request.rid
        self.worker: str = request.http_worker_ipc
        self.streams: bool = request.stream
        self.limit: int = CONTEXT_LENGTH if limit is None else limit
        self.made = 0
        self.sent = 0
        self.ended: dict[str, Any] | None = None
        self.frame: Frame | None = None


class WireEngine:
    """Router, scheduler and detokenizer of scripted streams; what a gateway attaches to."""

    def __init__(self, directory: Path, pace: Pace, *, codec: str, grouped: bool) -> None:
        tokenizer = ByteTokenizer()
        self.contract: EngineContract = simulated_contract(
            directory, tokenizer, codec=codec, model={"context_length": CONTEXT_LENGTH}, features={}
        )
        self.tokenization = TokenizationService(str(directory / SOCKET_NAME), lambda: tokenizer)
        self._pace = pace
        self._grouped = grouped
        self._codec = frame_codec(codec)
        self._maker = FrameMaker(self._codec, codec, tokenizer)
        self._transport = Transport(self.contract.wire.worker_endpoint)
        self._running: list[_Stream] = []
        self._groups: dict[str, tuple[list[_Stream], Frame]] = {}
        self._changed = False
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
        while not self._stopping:
            wait = next_step - time.monotonic() if self._running else None
            self._transport.wait(wait if wait is None else int(max(0.0, wait) * 1000) / 1000)
            self._receive()
            if self._running and (rest := next_step - time.monotonic()) <= 0.001:
                time.sleep(max(0.0, rest))
                next_step = max(next_step + self._pace.seconds, time.monotonic())
                self._step()
        self._transport.close(linger_ms=0)

    def _receive(self) -> None:
        while (frame := self._transport.receive()) is not None:
            self._handle(self._codec.decode(frame))

    def _handle(self, message: Struct) -> None:
        match message.__struct_name__:
            case "TokenizedGenerateReqInput":
                self._add(message)
            case "BatchTokenizedGenerateReqInput":
                for item in message.batch:
                    self._add(item)
            case "AbortReq":
                for stream in self._running:
                    if message.abort_all or stream.rid.startswith(message.rid):
                        stream.ended = {"type": "abort", "message": "Aborted", "status_code": None, "err_type": None}
            case "FlushCacheReqInput":
                self._answer(message, "FlushCacheReqOutput", success=not self._running)
            case "GetInternalStateReq":
                self._answer(message, "GetInternalStateReqOutput", internal_state={})

    def _add(self, request: Struct) -> None:
        self._running.append(_Stream(request))
        self._changed = True

    def _answer(self, request: Struct, kind: str, /, **fields: Any) -> None:
        worker = request.http_worker_ipc
        self._transport.send("router", worker, self._codec.encode(make(kind, http_worker_ipc=worker, **fields)))

    def _step(self) -> None:
        ended = False
        for stream in self._running:
            stream.made += 1
            if stream.made >= stream.limit:
                stream.made = stream.limit
                stream.ended = stream.ended or {"type": "length", "length": stream.limit}
            ended = ended or stream.ended is not None
        if ended:
            self._end()
        if self._grouped:
            self._send_grouped()
        else:
            self._send_single()

    def _end(self) -> None:
        going_on = []
        for stream in self._running:
            if stream.ended is None:
                going_on.append(stream)
                continue
            frame = self._maker.last(
                stream.request, tokens=stream.made, unsent=stream.made - stream.sent, reason=stream.ended
            )
            self._transport.send("detokenizer", stream.worker, frame)
        self._running = going_on
        self._changed = True

    def _send_grouped(self) -> None:
        if self._changed:
            self._changed = False
            by_worker: dict[str, list[_Stream]] = {}
            for stream in self._running:
                if stream.streams:
                    by_worker.setdefault(stream.worker, []).append(stream)
            self._groups = {
                worker: (streams, self._maker.frame([stream.request for stream in streams], grouped=True))
                for worker, streams in by_worker.items()
            }
        for worker, (streams, frame) in self._groups.items():
            self._transport.send("detokenizer", worker, frame.completed([stream.made for stream in streams]))
            for stream in streams:
                stream.sent = stream.made

    def _send_single(self) -> None:
        for stream in self._running:
            if stream.streams:
                frame = stream.frame
                if frame is None:
                    frame = stream.frame = self._maker.frame([stream.request], grouped=False)
                stream.sent = stream.made
                self._transport.send("detokenizer", stream.worker, frame.completed((stream.made,)))


def main() -> int:
    """Be an engine until the bench closes."""
    parent = Parent()
    settings = parent.settings()
    with tempfile.TemporaryDirectory(prefix="sgw-") as directory, Pace(settings["pace"]) as pace:
        engine = WireEngine(Path(directory), pace, codec=settings["codec"], grouped=settings["grouped"])
        engine.tokenization.start()
        try:
            with PublishedEngine(engine) as published:
                parent.say(segment=published.name)
                threading.Thread(target=_stop_with_parent, args=(parent, engine)).start()
                engine.run()
        finally:
            engine.tokenization.close()
    return 0


def _stop_with_parent(parent: Parent, engine: WireEngine) -> None:
    for _ in parent.messages():
        pass
    engine.stop()


if __name__ == "__main__":
    sys.exit(main())
