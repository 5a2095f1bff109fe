"""What the families of control messages have in common."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..scheduler import Scheduler
from ..wire.structs import StandIn

type Answer = StandIn | list[StandIn] | None
"""One for every data-parallel rank, a list of one for each, or none, or none yet."""

type Handler = Callable[[StandIn], Answer]

type Send = Callable[[StandIn, Answer], None]
"""Sends the answer to a request."""


class ControlFamily:
    """Messages that belong together, and their state. What a handler raises ends the scheduler, as it ends SGLang's."""

    def __init__(self, scheduler: Scheduler, send: Send) -> None:
        self._scheduler = scheduler
        self._send = send

    def handlers(self) -> Mapping[str, Handler]:
        """What is done for each kind of message."""
        raise NotImplementedError

    def waits(self) -> bool:
        """Whether something is to happen later, without a message or a step."""
        return False

    def tick(self) -> None:
        """Called after every message and every step."""

    def server_arg(self, name: str) -> Any:
        """One of the engine's arguments, None without it."""
        return self._scheduler.contract.server_args.get(name)
