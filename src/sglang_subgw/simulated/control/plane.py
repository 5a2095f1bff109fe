"""The control plane as a whole: who does what for a message, what tests keep of it, and how they meddle."""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from ..model import LoadedModel
from ..scheduler import Scheduler
from ..sessions import Sessions
from ..wire.schema import structs
from ..wire.structs import StandIn, make
from .adapters import Adapters
from .cache import Caches, Corpora
from .family import Answer, ControlFamily, Handler
from .groups import Groups
from .profiling import Experts, Housekeeping, Profiling
from .running import OpenSessions, Running, SimulatedMemory
from .state import Placement, State
from .weights import Weights


class ControlPlane:
    """An answer goes to the worker that asked, once per data-parallel rank; its attributes are what tests look at."""

    def __init__(self, scheduler: Scheduler, wake: Callable[[], None], *, keep_received: bool) -> None:
        self.received: list[tuple[str, dict[str, Any]]] = []
        """Every control message that has arrived: its kind, and all its fields."""
        self._scheduler = scheduler
        self._wake = wake
        self._keep_received = keep_received
        self._failures: defaultdict[str, deque[_Failure]] = defaultdict(deque)
        self._delays: dict[str, float] = {}
        self._held: set[str] = set()
        self._backlog: list[tuple[StandIn, float]] = []
        self.adapters = Adapters(scheduler, self._answer)
        self.caches = Caches(scheduler, self._answer)
        self.corpora = Corpora(scheduler, self._answer)
        self.experts = Experts(scheduler, self._answer)
        self.groups = Groups(scheduler, self._answer)
        self.housekeeping = Housekeeping(scheduler, self._answer)
        self.memory = SimulatedMemory(scheduler, self._answer)
        self.profiling = Profiling(scheduler, self._answer)
        self.running = Running(scheduler, self._answer)
        self.state = State(scheduler, self._answer)
        self.weights = Weights(scheduler, self._answer, self.groups)
        self._families: tuple[ControlFamily, ...] = (
            *(self.adapters, self.caches, self.corpora, self.experts, self.groups, self.housekeeping, self.memory),
            *(self.profiling, self.running, self.state, self.weights),
            *(OpenSessions(scheduler, self._answer), Placement(scheduler, self._answer)),
        )
        self._handlers: dict[str, Handler] = {}
        for family in self._families:
            self._handlers |= family.handlers()

    @property
    def kinds(self) -> frozenset[str]:
        """Every kind of message that something is done for."""
        return frozenset(self._handlers)

    @property
    def model(self) -> LoadedModel:
        """The weights and adapters that answer."""
        return self._scheduler.model

    @property
    def sessions(self) -> Sessions:
        """The open sessions."""
        return self._scheduler.sessions

    def messages(self, kind: str) -> list[dict[str, Any]]:
        """The fields of every message of a kind that has arrived."""
        return [fields for name, fields in list(self.received) if name == kind]

    # How tests meddle; from any thread.

    def fail(self, kind: str, message: str, *, times: int = 1, rank: int | None = None) -> None:
        """Answer the next messages of a kind with a failure, undone; with `rank`, that rank's answer only, and done.

        Raises ValueError for a kind whose answer can't tell of a failure.
        """
        if "success" not in structs()[answer_kind(kind)].types:
            raise ValueError(f"{answer_kind(kind)} has no success, so {kind} can't fail.")
        self._failures[kind].extend([_Failure(message, rank)] * times)

    def delay(self, kind: str, seconds: float) -> None:
        """Let each message of a kind wait so long before anything is done for it; all else goes on."""
        self._delays[kind] = seconds

    @contextmanager
    def hold(self, kind: str) -> Iterator[None]:
        """Let the messages of a kind wait until the block is left; all else goes on."""
        self._held.add(kind)
        try:
            yield
        finally:
            self._held.discard(kind)
            self._wake()

    # The engine's thread.

    @property
    def waits(self) -> bool:
        """Whether something is to happen later, without a message or a step."""
        return bool(self._backlog) or any(family.waits() for family in self._families)

    def record(self, message: StandIn) -> None:
        """Keep a message for tests."""
        if self._keep_received:
            self.received.append((message.__struct_name__, dict(vars(message))))

    def handle(self, message: StandIn) -> None:
        """Act on one message, or let it wait; raises for one that no scheduler of SGLang's takes."""
        kind = message.__struct_name__
        if kind not in self._handlers:
            raise ValueError(f"Invalid object: {message}")
        self._backlog.append((message, time.monotonic() + self._delays.get(kind, 0.0)))
        self.tick()

    def tick(self) -> None:
        """Do what is due."""
        now, waiting, blocked = time.monotonic(), [], set(self._held)
        backlog, self._backlog = self._backlog, []
        for message, due in backlog:
            kind = message.__struct_name__
            if kind in blocked or now < due:
                blocked.add(kind)
                waiting.append((message, due))
            else:
                self._act(message)
        self._backlog = waiting + self._backlog
        for family in self._families:
            family.tick()

    def _act(self, message: StandIn) -> None:
        kind = message.__struct_name__
        failure = self._failures[kind].popleft() if self._failures[kind] else None
        if failure is None:
            self._answer(message, self._handlers[kind](message))
        elif failure.rank is None:
            self._answer(message, failure.answer(message))
        else:
            answers = self._per_rank(self._handlers[kind](message))
            answers[failure.rank] = failure.answer(message)
            self._answer(message, answers)

    def _answer(self, message: StandIn, answer: Answer) -> None:
        worker = message.http_worker_ipc
        for one in self._per_rank(answer):
            vars(one)["http_worker_ipc"] = worker
            self._scheduler.replies.append((worker, one))

    def _per_rank(self, answer: Answer) -> list[StandIn]:
        if answer is None:
            return []
        return answer if isinstance(answer, list) else [answer] * self._scheduler.contract.features.num_dp_ranks


class _Failure(NamedTuple):
    message: str
    rank: int | None

    def answer(self, message: StandIn) -> StandIn:
        kind = answer_kind(message.__struct_name__)
        spec = structs()[kind]
        fields: dict[str, Any] = {"success": False}
        fields |= {name: self.message for name in ("message", "error_message", "error") if name in spec.types}
        if kind == "OpenSessionReqOutput":
            fields["session_id"] = message.session_id
        return make(kind, **fields)


def answer_kind(kind: str) -> str:
    """The kind of message that answers another."""
    return "LoRAUpdateOutput" if "LoRA" in kind else kind.removesuffix("Input") + "Output"
