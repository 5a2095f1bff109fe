"""The scheduler's role, without sockets: requests and control messages in, a step's outputs and answers out."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Iterator
from http import HTTPStatus

from ..contract import EngineContract
from ..worker.requests.routing import FAKE_HOST
from .embedding import KIND as EMBEDDING
from .embedding import SimulatedEmbedding
from .generation import SimulatedGeneration, abort_reason
from .model import LoadedModel, marked
from .script import Script, constrained, grammar_error
from .sessions import Sessions
from .tokenizer import ByteTokenizer
from .wire.structs import StandIn, make

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
        self.waiting: deque[SimulatedGeneration] = deque()
        self.running: list[SimulatedGeneration] = []
        self.replies: list[tuple[str, StandIn]] = []
        self.aborted: list[str] = []
        self.violations: list[str] = []
        self.sessions = Sessions(tokenizer)
        self.model = LoadedModel(contract.model.model_path)
        self.released: set[str] = set()
        """The memory that is given back: nothing can be computed without it."""
        self.paused = False
        self.weight_version = contract.model.weight_version
        self.steps = 0
        self.max_running = max_running
        self.on_cached: Callable[[SimulatedGeneration], None] = lambda generation: None
        """Called with one whose prompt the prefix cache has from now on."""
        self.on_flushed: Callable[[], None] = lambda: None
        """Called when the prefix cache was emptied."""
        self._tokenizer = tokenizer
        self._script = constrained(script)
        self._max_queued = max_queued
        self._health_checks: deque[str] = deque()
        self._rids_seen: set[str] = set()
        self._cache: set[tuple[str | None, tuple[int, ...]]] = set()

    @property
    def idle(self) -> bool:
        """Whether nothing waits or runs."""
        return not self.waiting and not self.running

    @property
    def flushable(self) -> bool:
        """Whether nothing holds memory: what waits for a pause to end doesn't."""
        return not self.running and (self.paused or not self.waiting)

    def uses(self, lora_id: str | None) -> list[str]:
        """The rids of what waits or runs with an adapter."""
        return [g.rid for g in (*self.waiting, *self.running) if g.request.lora_id == lora_id]

    def add(self, request: StandIn) -> None:
        """Take a request in: queue it, answer it at once, or refuse it, by SGLang's rules."""
        if request.rid.startswith(HEALTH_CHECK_PREFIX) and not self.idle:
            self._health_checks.append(request.http_worker_ipc)
            return
        if request.rid in self._rids_seen:
            self.violations.append(f"rid {request.rid} was used before")
        self._rids_seen.add(request.rid)
        if not all(0 <= token < self.contract.model.vocab_size for token in request.input_ids):
            self.violations.append(f"rid {request.rid} has ids outside the vocabulary")
        if request.lora_id is not None and request.lora_id not in self.model.adapters:
            self.violations.append(f"rid {request.rid} has lora_id {request.lora_id}, which isn't loaded")
        if (request.__struct_name__ == EMBEDDING) is self.contract.model.is_generation:
            self.violations.append(f"rid {request.rid} is a {request.__struct_name__}, for another kind of model")
        if request.__struct_name__ == EMBEDDING:
            self._enqueue(self._embedding(request))
            return
        self._check_routing(request)
        generation = self._generation(request)
        if self._enqueue(generation) and generation.to_finish is None:
            self.sessions.started(generation)

    def abort(self, message: StandIn) -> None:
        """SGLang's rule: every rid that *starts with* the given one."""
        for generation in [g for g in self.waiting if message.abort_all or g.rid.startswith(message.rid)]:
            self.waiting.remove(generation)
            self.aborted.append(generation.rid)
            self._echo_abort(generation, message.finished_reason)
        for generation in self.running:
            if generation.to_finish is None and (message.abort_all or generation.rid.startswith(message.rid)):
                self.aborted.append(generation.rid)
                generation.abort()

    def step(self) -> list[SimulatedGeneration]:
        """One forward step: admit, sample one token each, and give those whose state is to be sent."""
        if self.paused:
            return []
        if lost := self.released & {"weights", "kv_cache"}:
            raise RuntimeError(f"a step without the memory of {', '.join(sorted(lost))}, which was released")
        self.steps += 1
        while self.waiting and len(self.running) < self.max_running:
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
        """Running requests go back to the queue, behind what waits, as SGLang's own pause has it."""
        retracted, self.running = self.running, []
        for generation in retracted:
            generation.retractions += 1
            self._enqueue(generation)

    def flush(self) -> bool:
        """Forget the prefix cache; only while nothing holds memory."""
        if self.flushable:
            self._cache.clear()
            self.on_flushed()
        return self.flushable

    def set_weight_version(self, version: str | None) -> None:
        """What is made from now on is of this version; None leaves it as it is."""
        if version is None or version == self.weight_version:
            return
        for generation in (*self.running, *self.waiting):
            if generation.output:
                generation.weight_changes.append((self.weight_version, len(generation.output)))
        self.weight_version = version

    def take_replies(self) -> Iterator[tuple[str, StandIn]]:
        """What the router has to send since the last call."""
        replies, self.replies = self.replies, []
        yield from replies

    def _enqueue(self, generation: SimulatedGeneration) -> bool:
        """Let it wait; False if there is no room, which its worker is told."""
        if self._max_queued is not None and len(self.waiting) + 1 > self._max_queued:
            reason = {
                "type": "abort",
                "status_code": HTTPStatus.SERVICE_UNAVAILABLE,
                "message": "The request queue is full.",
            }
            self._echo_abort(generation, reason)
            return False
        self.waiting.append(generation)
        return True

    def _answer_health_check(self) -> None:
        if self._health_checks:
            worker = self._health_checks.popleft()
            self.replies.append((worker, make("HealthCheckOutput", http_worker_ipc=worker)))

    def _admit(self, generation: SimulatedGeneration) -> None:
        prompt = generation.request.lora_id, tuple(generation.prompt)
        if not generation.output:
            generation.cached_tokens = max(len(generation.prompt) - 1, 0) if prompt in self._cache else 0
            if prompt not in self._cache:
                self._cache.add(prompt)
                self.on_cached(generation)
        self.running.append(generation)

    def _check_routing(self, request: StandIn) -> None:
        """Raises as SGLang's own processes do, and end by it."""
        features = self.contract.features
        rank, ranks = request.routed_dp_rank, features.num_dp_ranks
        if ranks > 1 and rank is not None and not 0 <= rank < ranks:
            raise ValueError(f"DP rank {rank} is not active.")
        follows = self.contract.server_args.get("load_balance_method") == "follow_bootstrap_room"
        if ranks > 1 and follows and rank is None and request.bootstrap_room is None:
            raise AssertionError("req.bootstrap_room should not be None.")
        if self._lacks_room(request) and request.time_stats is None:
            raise AttributeError("'NoneType' object has no attribute 'trace_ctx'")
        if features.disaggregation_mode != "null":
            self._check_meeting(request)

    def _check_meeting(self, request: StandIn) -> None:
        features, host, room = self.contract.features, request.bootstrap_host, request.bootstrap_room
        if features.disaggregation_mode == "decode" and host is None:
            raise AttributeError("'NoneType' object has no attribute 'startswith'")
        if features.disaggregation_transfer_backend == "fake" or host == FAKE_HOST:
            return
        if any(g.request.bootstrap_room == room for g in (*self.waiting, *self.running)):
            raise KeyError(room)
        if room == 0:
            self.violations.append(f"rid {request.rid} has bootstrap_room 0, in which nothing ever arrives")

    def _lacks_room(self, request: StandIn) -> bool:
        """Prefill and decode could not meet; with several ranks SGLang's controller sees to it."""
        features = self.contract.features
        return (
            features.disaggregation_mode != "null"
            and features.disaggregation_transfer_backend != "fake"
            and features.num_dp_ranks == 1
            and request.bootstrap_room is None
        )

    def _embedding(self, request: StandIn) -> SimulatedEmbedding:
        embedding = SimulatedEmbedding(request, self._tokenizer)
        if problem := self._too_long(request):
            embedding.fail(problem, HTTPStatus.BAD_REQUEST, "BadRequestError")
        return embedding

    def _generation(self, request: StandIn) -> SimulatedGeneration:
        problem = ""
        if request.session_params is not None and request.session_params.id is not None:
            ids, problem = self.sessions.prompt(request)
            if not problem:
                request = make(request.__struct_name__, **{**vars(request), "input_ids": array("q", ids)})
        room = self.contract.model.context_length - len(request.input_ids) - 1
        generation = SimulatedGeneration(request, iter(()), self._tokenizer, limit=max(room, 1))
        if problem := problem or self._problem(request):
            generation.fail(problem, HTTPStatus.BAD_REQUEST, "BadRequestError")
        else:
            generation.ids = self._ids(request)
        return generation

    def _ids(self, request: StandIn) -> Iterator[int]:
        ids = self._script(request, self._tokenizer)
        if request.sampling_params.json_schema is not None:
            return iter(ids)
        return marked(ids, lambda: self.model.mark(request.lora_id), self._tokenizer)

    def _problem(self, request: StandIn) -> str:
        if self._lacks_room(request):
            return f"Invalid request: Disaggregated request received without bootstrap room id. req.rid={request.rid!r}"
        if problem := self._too_long(request):
            return problem
        length = len(request.input_ids)
        if request.logprob_start_len > length:
            return (
                f"req.logprob_start_len={request.logprob_start_len} is higher than the number of input tokens {length}."
            )
        return grammar_error(request.sampling_params)

    def _too_long(self, request: StandIn) -> str:
        length, limit = len(request.input_ids), self.contract.model.max_req_input_len
        if length < limit:
            return ""
        return f"Input length ({length} tokens) exceeds the maximum allowed length ({limit} tokens)."

    def _echo_abort(self, generation: SimulatedGeneration, reason: dict[str, object] | None) -> None:
        generation.finish_reason = abort_reason()
        echo = make(
            "AbortReq",
            rid=generation.rid,
            http_worker_ipc=generation.worker,
            finished_reason=reason,
            weight_versions=generation.weight_versions(self.weight_version),
        )
        self.replies.append((generation.worker, echo))
