"""The simulated engine itself: one thread that is router, scheduler and detokenizer."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

from ...shard.rooms import ROOMS_NAME
from ..coordinator import Coordinator
from ..tokenization import SOCKET_NAME, TokenizationService
from . import embedding
from .checks import violations
from .contract import simulated_contract
from .control import Control
from .engine_side import EngineSide
from .faults import Faults
from .frames import Undecodable, frame_codec
from .generation import Generation, stray_request
from .outputs import messages
from .publications import Publications
from .scheduler import Scheduler
from .script import Script, echo
from .structs import Struct, make
from .tokenizer import ByteTokenizer
from .transport import Transport

DRAIN_PER_WAKE_UP = 512


class SimulatedEngine:
    """An engine in a thread of this process, with the attributes a Gateway needs of a running engine.

    `received`, `aborted`, `violations` and `control` are what tests look at; `faults` may be changed while it runs.
    KV cache events are published if `kv_events`, SGLang's kv_events_config, is given.
    """

    def __init__(
        self,
        runtime_dir: str | Path,
        *,
        codec: str = "pickle",
        grouped: bool = True,
        step_seconds: float = 0.0,
        max_running: int = 1024,
        max_queued: int | None = None,
        script: Script = echo,
        faults: Faults | None = None,
        keep_received: bool = True,
        model: dict[str, Any] | None = None,
        features: dict[str, Any] | None = None,
        server_args: dict[str, Any] | None = None,
        kv_events: dict[str, Any] | None = None,
    ) -> None:
        self.tokenizer = ByteTokenizer()
        self.contract = simulated_contract(
            Path(runtime_dir),
            self.tokenizer,
            codec=codec,
            model=model or {},
            features=features or {},
            server_args=server_args,
            kv_events=kv_events,
        )
        self.engine: Any = None
        self.child_pids: tuple[int, ...] = ()
        self.faults = faults or Faults()
        self.received: list[Struct] = []
        self.registered: list[str] = []
        self.death_reason = ""
        self._tokenization = TokenizationService(str(Path(runtime_dir) / SOCKET_NAME), lambda: self.tokenizer)
        self.engine_side = EngineSide()
        self.coordinator = Coordinator(self.contract.wire.coordinator, {}, self.engine_side.calls)
        self._codec = frame_codec(codec)
        self._grouped = grouped
        self._step_seconds = step_seconds
        self._keep_received = keep_received
        self._scheduler = Scheduler(
            self.contract, self.tokenizer, script, max_running=max_running, max_queued=max_queued
        )
        self.publications = Publications(self.contract, self._scheduler, kv_events)
        self.control = Control(self._scheduler, self._wake, keep_received=keep_received)
        self._on_death: list[Callable[[str], object]] = []
        self._commands: deque[Callable[[], object]] = deque()
        self._changed = threading.Condition()
        self._router_dead = False
        self._stopping = False
        self._transport: Transport | None = None
        self._thread: threading.Thread | None = None

    # What a gateway uses.

    def on_death(self, callback: Callable[[str], object]) -> None:
        """Call back with the reason, from the engine's thread, should the engine end by itself."""
        self._on_death.append(callback)

    def router_alive(self) -> bool:
        """Whether requests still reach the scheduler."""
        return self._thread is not None and self._thread.is_alive() and not (self._router_dead or self.death_reason)

    def shutdown(self) -> None:
        """Stop the engine; the same as `stop`."""
        self.stop()

    # Life.

    def start(self) -> Self:
        """Bind the router's socket and serve."""
        self._tokenization.start()
        try:
            self.coordinator.start()
            self.publications.start()
            self._transport = Transport(self.contract.wire.worker_endpoint)
        except BaseException:
            self.stop()
            raise
        self._thread = threading.Thread(target=self._serve, name="simulated-engine")
        self._thread.start()
        return self

    def stop(self) -> None:
        """End, leave no thread and no file. Safe to call twice."""
        self._stopping = True
        if self._transport is not None:
            self._transport.wake()
        if self._thread is not None:
            self._thread.join()
        self.coordinator.close()
        self.publications.close()
        self._tokenization.close()
        for name in ("tokenizer.json", ROOMS_NAME):
            Path(self.contract.wire.runtime_dir, name).unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exc: object) -> None:
        self.stop()

    # What tests look at.

    @property
    def violations(self) -> list[str]:
        """Everything a worker did that would have hurt a real engine."""
        return self._scheduler.violations

    @property
    def aborted(self) -> list[str]:
        """The rids that aborts of workers have ended."""
        return self._scheduler.aborted

    @property
    def paused(self) -> bool:
        """Whether a pause is in force."""
        return self._scheduler.paused

    @property
    def steps(self) -> int:
        """Forward steps so far."""
        return self._scheduler.steps

    def running(self) -> int:
        """Requests waiting or running now."""
        return len(self._scheduler.running) + len(self._scheduler.waiting)

    def waiting(self) -> int:
        """Requests that wait for their first step."""
        return len(self._scheduler.waiting)

    def cpu_seconds(self) -> float:
        """Processor time that the engine's thread has used."""
        assert self._thread is not None
        assert self._thread.ident is not None
        return time.clock_gettime(time.pthread_getcpuclockid(self._thread.ident))

    def requests(self) -> list[Struct]:
        """The requests received, to generate and to embed, batches taken apart."""
        out: list[Struct] = []
        for message in list(self.received):
            if message.__struct_name__ in ("BatchTokenizedGenerateReqInput", embedding.BATCH_KIND):
                out.extend(message.batch)
            elif message.__struct_name__ in ("TokenizedGenerateReqInput", embedding.KIND):
                out.append(message)
        return out

    def wait_for(self, condition: Callable[[], bool], timeout: float = 5.0) -> bool:
        """Wait until `condition` holds, looking again whenever the engine did something."""
        with self._changed:
            return self._changed.wait_for(condition, timeout)

    def wait_idle(self, timeout: float = 5.0) -> bool:
        """Wait until nothing waits or runs."""
        return self.wait_for(lambda: self._scheduler.idle, timeout)

    # Faults that happen once.

    def set_faults(self, **changes: Any) -> None:
        """Change `faults`, and let the engine look at them now."""

        def change() -> None:
            for name, value in changes.items():
                setattr(self.faults, name, value)

        self._command(change)

    def send_frame(self, worker: str, frame: bytes) -> None:
        """Send a worker any bytes, from the detokenizer's side."""

        def send() -> None:
            assert self._transport is not None
            self._transport.send("detokenizer", worker, frame)

        self._command(send)

    def send_message(self, worker: str, kind: str, **fields: Any) -> None:
        """Send a worker any message of the schema, from the router's side."""
        self._command(lambda: self._send("router", worker, make(kind, **fields)))

    def send_unknown_rid(self, worker: str) -> None:
        """Send a worker an output for a request that it never made."""

        def send() -> None:
            request = Generation(stray_request(worker), iter(b"stray"), self.tokenizer, limit=1)
            request.step()
            for target, message in self._messages([request]):
                self._send("detokenizer", target, message)

        self._command(send)

    def crash(self, reason: str = "simulated crash") -> None:
        """End at once as a crashed engine does."""
        self._command(lambda: setattr(self, "death_reason", reason))

    # The engine's thread.

    def _command(self, command: Callable[[], object]) -> None:
        self._commands.append(command)
        self._wake()

    def _wake(self) -> None:
        if self._transport is not None:
            self._transport.wake()

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
                self.publications.look(now)
                for worker, reply in self._scheduler.take_replies():
                    self._send("router", worker, reply)
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
            for callback in self._on_death:
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

    def _route(self, message: Struct) -> None:
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
                    self._send("router", worker, make("PauseContinueBroadcastReq", is_pause=pause))
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
                self._send("detokenizer", worker, message)
        if self.faults.crash_after_steps is not None:
            self.faults.crash_after_steps -= 1
            if self.faults.crash_after_steps <= 0:
                self.death_reason = "simulated crash"

    def _messages(self, due: list[Generation]) -> Iterator[tuple[str, Struct]]:
        yield from embedding.embedding_messages([one for one in due if isinstance(one, embedding.Embedding)])
        yield from messages(
            [one for one in due if not isinstance(one, embedding.Embedding)],
            grouped=self._grouped,
            weight_version=self._scheduler.weight_version,
            vocab_size=self.contract.model.vocab_size,
        )

    def _send(self, role: str, worker: str, message: Struct) -> None:
        if self._transport is not None:
            self._transport.send(role, worker, self._codec.encode(message))
