"""The simulated engine as gateways and tests see it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from ..coordination.bootstrap_rooms import ROOMS_NAME
from ..coordination.server import Coordinator
from ..tokenization.server import SOCKET_NAME, TokenizationService
from . import embedding
from .contract import simulated_contract
from .engine_side import EngineSide
from .faults import Faults
from .generation import SimulatedGeneration, stray_request
from .loop import SimulatedLoop
from .publications.publications import Publications
from .scheduler import Scheduler
from .script import Script, echo
from .tokenizer import ByteTokenizer
from .wire.frames import frame_codec
from .wire.structs import StandIn, make


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
        self._tokenization = TokenizationService(str(Path(runtime_dir) / SOCKET_NAME), lambda: self.tokenizer)
        self.engine_side = EngineSide()
        self.coordinator = Coordinator(self.contract.wire.coordinator, {}, self.engine_side.calls)
        self._scheduler = Scheduler(
            self.contract, self.tokenizer, script, max_running=max_running, max_queued=max_queued
        )
        self.publications = Publications(self.contract, self._scheduler, kv_events)
        self._loop = SimulatedLoop(
            self._scheduler,
            self.publications,
            self.faults,
            frame_codec(codec),
            grouped=grouped,
            step_seconds=step_seconds,
            keep_received=keep_received,
        )
        self.control = self._loop.control
        self.received = self._loop.received
        self.registered = self._loop.registered

    # What a gateway uses.

    def on_death(self, callback: Callable[[str], object]) -> None:
        """Call back with the reason, from the engine's thread, should the engine end by itself."""
        self._loop.on_death.append(callback)

    def router_alive(self) -> bool:
        """Whether requests still reach the scheduler."""
        return self._loop.alive

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
            self._loop.start()
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """End, leave no thread and no file. Safe to call twice."""
        self._loop.stop()
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
    def death_reason(self) -> str:
        """Why it ended by itself, "" while it has not."""
        return self._loop.death_reason

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
        return self._loop.cpu_seconds()

    def requests(self) -> list[StandIn]:
        """The requests received, to generate and to embed, batches taken apart."""
        out: list[StandIn] = []
        for message in list(self.received):
            if message.__struct_name__ in ("BatchTokenizedGenerateReqInput", embedding.BATCH_KIND):
                out.extend(message.batch)
            elif message.__struct_name__ in ("TokenizedGenerateReqInput", embedding.KIND):
                out.append(message)
        return out

    def wait_for(self, condition: Callable[[], bool], timeout: float = 5.0) -> bool:
        """Wait until `condition` holds, looking again whenever the engine did something."""
        return self._loop.wait_for(condition, timeout)

    def wait_idle(self, timeout: float = 5.0) -> bool:
        """Wait until nothing waits or runs."""
        return self.wait_for(lambda: self._scheduler.idle, timeout)

    # Faults that happen once.

    def set_faults(self, **changes: Any) -> None:
        """Change `faults`, and let the engine look at them now; raises TypeError for one that there is not."""
        dataclasses.replace(self.faults, **changes)

        def change() -> None:
            for name, value in changes.items():
                setattr(self.faults, name, value)

        self._loop.command(change)

    def send_frame(self, worker: str, frame: bytes) -> None:
        """Send a worker any bytes, from the detokenizer's side."""
        self._loop.command(lambda: self._loop.send_frame("detokenizer", worker, frame))

    def send_message(self, worker: str, kind: str, **fields: Any) -> None:
        """Send a worker any message of the schema, from the router's side."""
        self._loop.command(lambda: self._loop.send("router", worker, make(kind, **fields)))

    def send_unknown_rid(self, worker: str) -> None:
        """Send a worker an output for a request that it never made."""

        def send() -> None:
            request = SimulatedGeneration(stray_request(worker), iter(b"stray"), self.tokenizer, limit=1)
            request.step()
            self._loop.send_outputs([request])

        self._loop.command(send)

    def crash(self, reason: str = "simulated crash") -> None:
        """End at once as a crashed engine does."""
        self._loop.command(lambda: setattr(self._loop, "death_reason", reason))
