"""The simulated engine's thread: router, scheduler and detokenizer in one."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final

from . import embedding
from .control import ControlPlane
from .faults import Faults
from .generation import SimulatedGeneration
from .outputs import messages
from .publications.publications import Publications
from .scheduler import Scheduler
from .wire.checks import violations
from .wire.frames import FrameCodec, Undecodable
from .wire.structs import StandIn, make
from .wire.transport import Transport

DRAIN_PER_WAKE_UP: Final = 512


class SimulatedLoop:
    """Runs from `start` to `stop`, or to a death of its own, which it tells of from its thread."""

    def __init__(
        self,
        scheduler: Scheduler,
        publications: Publications,
        faults: Faults,
        codec: FrameCodec,
        *,
        grouped: bool,
        step_seconds: float,
        keep_received: bool,
    ) -> None:
        self.control = ControlPlane(scheduler, self.wake, keep_received=keep_received)
        self.faults = faults
        self.received: list[StandIn] = []
        self.registered: list[str] = []
        self.death_reason = ""
        self.on_death: list[Callable[[str], object]] = []
        self._scheduler = scheduler
        self._publications = publications
        self._codec = codec
        self._grouped = grouped
        self._step_seconds = step_seconds
        self._keep_received = keep_received
        self._commands: deque[Callable[[], object]] = deque()
        self._changed = threading.Condition()
        self._router_dead = False
        self._stopping = False
        self._transport: Transport | None = None
        self._thread: threading.Thread | None = None

    @property
    def alive(self) -> bool:
        """Whether messages still reach the scheduler."""
        return self._thread is not None and self._thread.is_alive() and not (self._router_dead or self.death_reason)

    def start(self) -> None:
        """Bind the router's socket and serve."""
        self._transport = Transport(self._scheduler.contract.wire.worker_endpoint)
        self._thread = threading.Thread(target=self._serve, name="simulated-engine")
        self._thread.start()

    def stop(self) -> None:
        """End. Safe to call twice, and without a start."""
        self._stopping = True
        self.wake()
        if self._thread is not None:
            self._thread.join()

    # From any thread.

    def command(self, command: Callable[[], object]) -> None:
        """Let the thread call something."""
        self._commands.append(command)
        self.wake()

    def wake(self) -> None:
        """Let the thread look for what there is to do."""
        if self._transport is not None:
            self._transport.wake()

    def wait_for(self, condition: Callable[[], bool], timeout: float) -> bool:
        """Wait until `condition` holds, looking again whenever the thread did something."""
        with self._changed:
            return self._changed.wait_for(condition, timeout)

    def cpu_seconds(self) -> float:
        """Processor time that the thread has used."""
        assert self._thread is not None
        assert self._thread.ident is not None
        return time.clock_gettime(time.pthread_getcpuclockid(self._thread.ident))

    # From a command.

    def send(self, role: str, worker: str, message: StandIn) -> None:
        """Send a worker a message from the router's or the detokenizer's side."""
        self.send_frame(role, worker, self._codec.encode(message))

    def send_frame(self, role: str, worker: str, frame: bytes) -> None:
        """Send a worker any bytes."""
        if self._transport is not None:
            self._transport.send(role, worker, frame)

    def send_outputs(self, due: list[SimulatedGeneration]) -> None:
        """Send what these requests have to tell."""
        for worker, message in self._messages(due):
            self.send("detokenizer", worker, message)

    # The thread.

    def _serve(self) -> None:
        assert self._transport is not None
        next_step = 0.0
        try:
            while not self._stopping and not self.death_reason:
                now = time.monotonic()
                self._transport.wait(self._wait_seconds(next_step, now))
                while self._commands:
                    self._commands.popleft()()
                self._read_router()
                now = time.monotonic()
                if now >= next_step and self._has_work():
                    slowed = self.faults.delay_seconds + self.control.running.step_sleep
                    next_step = max(next_step + self._step_seconds, now) + slowed
                    self._step()
                if self._scheduler.idle:
                    self._scheduler.on_idle()
                self.control.tick()
                self._publications.look(now)
                for worker, reply in self._scheduler.take_replies():
                    self.send("router", worker, reply)
                with self._changed:
                    self._changed.notify_all()
        except Exception as exc:
            self.death_reason = f"{type(exc).__name__}: {exc}"
            self._scheduler.violations.append(f"the scheduler died of {self.death_reason}")
        finally:
            self._transport.close(linger_ms=0)
            with self._changed:
                self._changed.notify_all()
        if self.death_reason:
            for callback in self.on_death:
                callback(self.death_reason)

    def _has_work(self) -> bool:
        return not self._scheduler.idle and not self._scheduler.paused and not self.faults.stall

    def _wait_seconds(self, next_step: float, now: float) -> float | None:
        if self._has_work():
            return next_step - now
        return None if self._scheduler.idle and not self.control.waits else 0.05

    def _read_router(self) -> None:
        if self._router_dead or self.faults.router_silent or self._transport is None:
            return
        for _ in range(DRAIN_PER_WAKE_UP):
            if (frame := self._transport.receive()) is None:
                return
            try:
                message = self._codec.decode(frame)
            except Undecodable as exc:
                self._router_dead = True
                self._transport.stop_reading()
                self._scheduler.violations.append(f"the router died of a frame: {exc}")
                return
            self._route(message)

    def _route(self, message: StandIn) -> None:
        if self._keep_received:
            self.received.append(message)
        self._scheduler.violations.extend(violations(message))
        match message.__struct_name__:
            case "TokenizerWorkerRegistrationReq":
                if message.worker_ipc_name not in self.registered:
                    self.registered.append(message.worker_ipc_name)
            case "TokenizedGenerateReqInput" | embedding.KIND:
                self._scheduler.add(message)
            case "BatchTokenizedGenerateReqInput" | embedding.BATCH_KIND:
                for item in message.batch:
                    self._scheduler.add(item)
            case "PauseGenerationReqInput" | "ContinueGenerationReqInput" as kind:
                self.control.record(message)
                pause = kind == "PauseGenerationReqInput"
                for worker in self.registered:
                    self.send("router", worker, make("PauseContinueBroadcastReq", is_pause=pause))
                if not (pause and message.mode == "abort"):
                    self.control.handle(message)
            case _:
                self.control.record(message)
                self.control.handle(message)

    def _step(self) -> None:
        for worker, message in self._messages(self._scheduler.step()):
            if self.faults.drop_outputs > 0:
                self.faults.drop_outputs -= 1
            else:
                self.send("detokenizer", worker, message)
        if self.faults.crash_after_steps is not None:
            self.faults.crash_after_steps -= 1
            if self.faults.crash_after_steps <= 0:
                self.death_reason = "simulated crash"

    def _messages(self, due: list[SimulatedGeneration]) -> Iterator[tuple[str, StandIn]]:
        yield from embedding.embedding_messages([one for one in due if isinstance(one, embedding.SimulatedEmbedding)])
        yield from messages(
            [one for one in due if not isinstance(one, embedding.SimulatedEmbedding)],
            grouped=self._grouped,
            weight_version=self._scheduler.weight_version,
            vocab_size=self._scheduler.contract.model.vocab_size,
        )
