"""What runs, and what may: pauses, aborts, sessions, and memory that is given back for a while."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ..scheduler import Scheduler
from ..wire.structs import StandIn, make
from .family import Answer, ControlFamily, Handler, Send

MEMORY: Final = ("kv_cache", "weights", "cuda_graph")


class Running(ControlFamily):
    """Pause and continue as the scheduler sees them (the router keeps a pause that aborts), aborts, slow motion."""

    def __init__(self, scheduler: Scheduler, send: Send) -> None:
        super().__init__(scheduler, send)
        self.step_sleep = 0.0
        """Seconds that each step is slowed down by."""

    def handlers(self) -> Mapping[str, Handler]:
        return {
            "PauseGenerationReqInput": self._pause,
            "ContinueGenerationReqInput": self._continue,
            "AbortReq": self._abort,
            "SlowDownReqInput": self._slow_down,
        }

    def _pause(self, message: StandIn) -> Answer:
        if message.mode == "abort":
            raise AssertionError("the router has let a pause of mode abort through")
        self._scheduler.paused = True
        if message.mode == "retract":
            self._scheduler.retract()
        return None

    def _continue(self, message: StandIn) -> Answer:
        self._scheduler.paused = False
        return None

    def _abort(self, message: StandIn) -> Answer:
        self._scheduler.abort(message)
        return None

    def _slow_down(self, message: StandIn) -> Answer:
        self.step_sleep = max(message.forward_sleep_time or 0.0, 0.0)
        return make("SlowDownReqOutput")


class SimulatedMemory(ControlFamily):
    """Which memory is released; SGLang's asserts that nothing runs, and that what is resumed was released."""

    def handlers(self) -> Mapping[str, Handler]:
        return {
            "ReleaseMemoryOccupationReqInput": self._release,
            "ResumeMemoryOccupationReqInput": self._resume,
        }

    @property
    def released(self) -> set[str]:
        """The tags of what is released."""
        return self._scheduler.released

    def _release(self, message: StandIn) -> Answer:
        if not self._scheduler.flushable:
            raise AssertionError("release_memory_occupation should be called only when server is idle.")
        tags = set(message.tags or MEMORY)
        if twice := self.released & tags:
            self._scheduler.violations.append(f"the memory of {', '.join(sorted(twice))} is released twice")
        self.released.update(tags)
        if "kv_cache" in tags:
            self._scheduler.flush()
        return make("ReleaseMemoryOccupationReqOutput")

    def _resume(self, message: StandIn) -> Answer:
        for tag in message.tags or MEMORY:
            self.released.remove(tag)
        return make("ResumeMemoryOccupationReqOutput")


class OpenSessions(ControlFamily):
    """Sessions come and go; the scheduler knows what is in them."""

    def handlers(self) -> Mapping[str, Handler]:
        return {"OpenSessionReqInput": self._open, "CloseSessionReqInput": self._close}

    def tick(self) -> None:
        """Close those whose time is over."""
        self._scheduler.sessions.reap()

    def _open(self, message: StandIn) -> Answer:
        name = message.session_id
        opened = self._scheduler.sessions.open(name, streaming=bool(message.streaming), timeout=message.timeout)
        return make("OpenSessionReqOutput", session_id=name, success=opened)

    def _close(self, message: StandIn) -> Answer:
        self._scheduler.sessions.close(message.session_id)
        return None
