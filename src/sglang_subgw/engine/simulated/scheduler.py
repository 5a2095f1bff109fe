"""The scheduler's role, without sockets: requests and control messages in, a step's outputs and answers out."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from http import HTTPStatus

from ...contract import EngineContract
from .generation import Generation, abort_reason
from .script import Script, constrained, grammar_error
from .structs import Struct, make
from .tokenizer import ByteTokenizer

HEALTH_CHECK_PREFIX = "HEALTH_CHECK"


class Scheduler:
    """Waiting and running requests; `replies` collects what goes out through the router."""

    def __init__(
        self,
        contract: EngineContract,
        tokenizer: ByteTokenizer,
        script: Script,
        *,
        max_running: int,
        max_queued: int | None,
    ) -> None:
        self.contract = contract
        self.waiting: deque[Generation] = deque()
        self.running: list[Generation] = []
        self.replies: list[tuple[str, Struct]] = []
        self.aborted: list[str] = []
        self.violations: list[str] = []
        self.sessions: set[str] = set()
        self.paused = False
        self.weight_version = contract.model.weight_version
        self.steps = 0
        self._tokenizer = tokenizer
        self._script = constrained(script)
        self._max_running = max_running
        self._max_queued = max_queued
        self._health_checks: deque[str] = deque()
        self._rids_seen: set[str] = set()
        self._cache: set[tuple[int, ...]] = set()

    @property
    def idle(self) -> bool:
        """Whether nothing waits or runs."""
        return not self.waiting and not self.running

    def add(self, request: Struct) -> None:
        """Take a request in: queue it, answer it at once, or refuse it, by SGLang's rules."""
        if request.rid.startswith(HEALTH_CHECK_PREFIX) and not self.idle:
            self._health_checks.append(request.http_worker_ipc)
            return
        if request.rid in self._rids_seen:
            self.violations.append(f"rid {request.rid} was used before")
        self._rids_seen.add(request.rid)
        if not all(0 <= token < self._tokenizer.vocab_size for token in request.input_ids):
            self.violations.append(f"rid {request.rid} has ids outside the vocabulary")
        generation = self._generation(request)
        if self._max_queued is not None and len(self.waiting) + 1 > self._max_queued:
            reason = {
                "type": "abort",
                "status_code": HTTPStatus.SERVICE_UNAVAILABLE,
                "message": "The request queue is full.",
            }
            self._echo_abort(generation, reason)
            return
        self.waiting.append(generation)

    def abort(self, message: Struct) -> None:
        """SGLang's rule: every rid that *starts with* the given one."""
        for generation in [g for g in self.waiting if message.abort_all or g.rid.startswith(message.rid)]:
            self.waiting.remove(generation)
            self.aborted.append(generation.rid)
            self._echo_abort(generation, message.finished_reason)
        for generation in self.running:
            if generation.to_finish is None and (message.abort_all or generation.rid.startswith(message.rid)):
                self.aborted.append(generation.rid)
                generation.to_finish = abort_reason()

    def step(self) -> list[Generation]:
        """One forward step: admit, sample one token each, and give those whose state is to be sent."""
        if self.paused:
            return []
        self.steps += 1
        while self.waiting and len(self.running) < self._max_running:
            self._admit(self.waiting.popleft())
        for generation in self.running:
            generation.step()
        due = [generation for generation in self.running if generation.due()]
        self.running = [generation for generation in self.running if generation.finish_reason is None]
        self._answer_health_check()
        return due

    def on_idle(self) -> None:
        """SGLang's idle loop answers one deferred health check after the other."""
        while self._health_checks and not self.paused:
            self._answer_health_check()

    def retract(self) -> None:
        """Running requests go back to the front of the queue."""
        self.waiting.extendleft(reversed(self.running))
        self.running = []

    def flush(self) -> bool:
        """Forget the prefix cache; only while idle."""
        if self.idle:
            self._cache.clear()
        return self.idle

    def take_replies(self) -> Iterator[tuple[str, Struct]]:
        """What the router has to send since the last call."""
        replies, self.replies = self.replies, []
        yield from replies

    def _answer_health_check(self) -> None:
        if self._health_checks:
            worker = self._health_checks.popleft()
            self.replies.append((worker, make("HealthCheckOutput", http_worker_ipc=worker)))

    def _admit(self, generation: Generation) -> None:
        prompt = tuple(generation.prompt)
        if not generation.output:
            generation.cached_tokens = max(len(prompt) - 1, 0) if prompt in self._cache else 0
            self._cache.add(prompt)
        self.running.append(generation)

    def _generation(self, request: Struct) -> Generation:
        room = self.contract.model.context_length - len(request.input_ids) - 1
        ids = iter(())
        generation = Generation(request, ids, self._tokenizer, limit=max(room, 1))
        if problem := self._problem(request):
            generation.fail(problem, HTTPStatus.BAD_REQUEST, "BadRequestError")
        else:
            generation.ids = iter(self._script(request, self._tokenizer))
        return generation

    def _problem(self, request: Struct) -> str:
        session = request.session_params
        if session is not None and session.id is not None and session.id not in self.sessions:
            return f"Invalid request: session id {session.id} does not exist"
        length, limit = len(request.input_ids), self.contract.model.max_req_input_len
        if length >= limit:
            return f"Input length ({length} tokens) exceeds the maximum allowed length ({limit} tokens)."
        if request.logprob_start_len > length:
            return (
                f"req.logprob_start_len={request.logprob_start_len} is higher than the number of input tokens {length}."
            )
        return grammar_error(request.sampling_params)

    def _echo_abort(self, generation: Generation, reason: dict[str, object] | None) -> None:
        echo = make("AbortReq", rid=generation.rid, http_worker_ipc=generation.worker, finished_reason=reason)
        self.replies.append((generation.worker, echo))
