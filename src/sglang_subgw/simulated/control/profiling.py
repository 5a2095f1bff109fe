"""Profiles, expert distribution, and other things that only look at the engine."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Final

from ..scheduler import Scheduler
from ..wire.structs import StandIn, make
from .family import Answer, ControlFamily, Handler, Send

_START: Final = 1
_STOP: Final = 2
_FIELDS: Final = ("output_dir", "activities", "profile_id", "profile_prefix", "with_stack", "record_shapes")


class Profiling(ControlFamily):
    """At most one profile at a time."""

    def __init__(self, scheduler: Scheduler, send: Send) -> None:
        super().__init__(scheduler, send)
        self.running: dict[str, Any] | None = None
        """The settings of the profile that runs, None while none does."""
        self.done: list[dict[str, Any]] = []
        """The settings of those that have ended, whose traces SGLang would have written."""
        self._planned: dict[str, Any] | None = None
        self._first_step = 0
        self._last_step: int | None = None

    def handlers(self) -> Mapping[str, Handler]:
        return {"ProfileReq": self._profile}

    def tick(self) -> None:
        """Start a profile whose first step has come, end one whose last step is over."""
        steps = self._scheduler.steps
        if self._planned is not None and steps >= self._first_step:
            self.running, self._planned = self._planned, None
        if self.running is not None and self._last_step is not None and steps >= self._last_step:
            self._end()

    def _profile(self, message: StandIn) -> Answer:
        if message.req_type == _STOP:
            if self.running is None:
                return _profiled("Profiling is not in progress. Call /start_profile first.")
            self._end()
            return _profiled()
        if self.running is not None:
            return _profiled("Profiling is already in progress. Call /stop_profile first.")
        settings = {name: getattr(message, name) for name in _FIELDS}
        steps = self._scheduler.steps
        if message.start_step or message.profile_by_stage:
            self._first_step = max(message.start_step or 0, steps + 1)
            self._planned = settings
        else:
            self._first_step = steps + 1
            self.running = settings
        self._last_step = self._first_step + message.num_steps if message.num_steps else None
        return _profiled()

    def _end(self) -> None:
        assert self.running is not None
        self.done.append(self.running)
        self.running = self._last_step = None


class Experts(ControlFamily):
    """The record of which experts were used; off, SGLang's raises and ends."""

    def __init__(self, scheduler: Scheduler, send: Send) -> None:
        super().__init__(scheduler, send)
        self.recording = False
        self.dumps = 0
        """How often a record was written."""

    def handlers(self) -> Mapping[str, Handler]:
        return {"ExpertDistributionReq": self._act}

    def _act(self, message: StandIn) -> Answer:
        if not self.server_arg("expert_distribution_recorder_mode"):
            raise RuntimeError(
                "Please set ServerArgs.expert_distribution_recorder_mode to use ExpertDistributionRecorder."
            )
        match message.action:
            case 1 | 2:
                self.recording = message.action == _START
            case 3:
                self.dumps += 1
            case _:
                raise ValueError(f"Unrecognized ExpertDistributionReq value: recv_req={message}")
        return make("ExpertDistributionReqOutput")


class Housekeeping(ControlFamily):
    """What each of SGLang's processes does for itself."""

    def __init__(self, scheduler: Scheduler, send: Send) -> None:
        super().__init__(scheduler, send)
        self.gc_frozen: list[list[int] | None] = []
        """The thresholds that each freeze of the garbage collector came with."""

    def handlers(self) -> Mapping[str, Handler]:
        return {
            "FreezeGCReq": self._freeze,
            "ConfigureLoggingReq": self._configure_logging,
            "ShutdownReq": lambda message: None,
            "DumperControlReqInput": self._dump,
        }

    def _freeze(self, message: StandIn) -> Answer:
        self.gc_frozen.append(message.gc_threshold)
        return None

    def _configure_logging(self, message: StandIn) -> Answer:
        if message.log_level is not None and message.log_level.upper() not in logging.getLevelNamesMapping():
            raise ValueError(f"Unknown level: {message.log_level.upper()!r}")
        return None

    def _dump(self, message: StandIn) -> Answer:
        text = "'NoneType' object has no attribute 'handle_request'"  # As without DUMPER_SERVER_PORT.
        return make("DumperControlReqOutput", success=False, response=[], error=text)


def _profiled(problem: str = "") -> StandIn:
    return make("ProfileReqOutput", success=not problem, message=problem or "Succeeded")
