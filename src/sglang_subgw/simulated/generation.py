"""One request inside the simulated scheduler: it grows by a token a step until something ends it."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from http import HTTPStatus
from typing import Any, Final

from .tokenizer import ByteTokenizer, IncrementalText
from .wire.structs import StandIn, make

LONGEST_PIECE: Final = 64
"""More characters than one token can add."""

type FinishReason = dict[str, Any]

FORCE_STREAM_INTERVAL: Final = 50
"""Every how many tokens SGLang reports on a request that doesn't stream."""


class SimulatedGeneration:
    """A request's state, and what it has to send."""

    def __init__(self, request: StandIn, ids: Iterator[int], tokenizer: ByteTokenizer, *, limit: int) -> None:
        self.request = request
        self.rid: str = request.rid
        self.worker: str = request.http_worker_ipc
        self.params: StandIn = request.sampling_params
        self.ids = ids
        self.tokenizer = tokenizer
        asked = self.params.max_new_tokens
        self.limit = limit if asked is None else min(asked, limit)
        self.prompt = list(request.input_ids)
        self.return_logprob: bool = getattr(request, "return_logprob", False)
        self.cached_tokens = 0
        self.output: list[int] = []
        self.text = ""
        self.finish_reason: FinishReason | None = None
        self.to_finish: FinishReason | None = None
        self.input_logprobs_sent = False
        self.retractions = 0
        self.weight_changes: list[tuple[str, int]] = []
        """The version that each change of weights replaced, and how many tokens there were by then."""
        self._incremental = IncrementalText(tokenizer, skip_special_tokens=self.params.skip_special_tokens)
        self._sent_tokens = 0
        self._sent_text = 0

    def fail(self, message: str, status: HTTPStatus, kind: str) -> None:
        """End at the next step with an error, as SGLang's set_finish_with_abort: the prompt is forgotten."""
        self.prompt = [0]
        self.return_logprob = False
        self.to_finish = abort_reason(message, status, kind)

    def abort(self) -> None:
        """End at the next step, unless it has ended."""
        if self.finish_reason is None and self.to_finish is None:
            self.to_finish = abort_reason()

    @property
    def aborted(self) -> bool:
        """It has ended before its time."""
        return self.finish_reason is not None and self.finish_reason["type"] == "abort"

    def weight_versions(self, current: str) -> list[StandIn]:
        """Which version of the weights made which tokens, as SGLang's compute_weight_version_spans."""
        length = len(self.output)
        spans: list[tuple[str, int, int]] = []
        for version, end in [*self.weight_changes, (current, length)]:
            last, start, at = spans[-1] if spans else (None, 0, 0)
            end = min(end, length)
            if spans and end <= at:
                continue
            if version == last:
                spans[-1] = version, start, end
            else:
                spans.append((version, at, end))
        return [make("WeightVersionSpan", version=version, start=start, end=end) for version, start, end in spans]

    def step(self) -> None:
        """Sample one token and see whether it ends the request; a finish asked for from outside comes first."""
        if self.to_finish is not None:
            # SGLang lets the step run and then finishes: the token is there, and is part of the answer.
            self._sample()
            self.finish_reason, self.to_finish = self.to_finish, None
        else:
            token = self._sample()
            self.finish_reason = self._stop_string() or self._stop_token(token) or self._length()
        if self.finish_reason is not None:
            self._end()

    def due(self) -> bool:
        """Whether this step's state goes out: at the end, every stream interval, not while a stop string may begin."""
        if self.finish_reason is not None:
            return True
        unsent = len(self.output) - self._sent_tokens
        if not self.request.stream:
            return len(self.output) % FORCE_STREAM_INTERVAL == 0
        interval = self.params.stream_interval or 1
        return (unsent >= interval or self._sent_tokens == 0) and not self._stop_may_begin()

    def take(self) -> tuple[str, list[int], int]:
        """What was not sent yet: text, ids, and the index of the first id."""
        start = self._sent_tokens
        text = self.text[self._sent_text :]
        self._sent_tokens = len(self.output)
        self._sent_text = len(self.text)
        return text, self.output[start:], start

    def _sample(self) -> int:
        token = next(self.ids, self.tokenizer.eos_token_id)
        self.output.append(token)
        self.text += self._incremental.push(token)
        return token

    def _stop_string(self) -> FinishReason | None:
        for stop in self.params.stop_strs:
            if stop in self.text[-len(stop) - LONGEST_PIECE :]:
                return {"type": "stop", "matched": stop}
        return None

    def _stop_token(self, token: int) -> FinishReason | None:
        if self.params.ignore_eos or len(self.output) < self.params.min_new_tokens:
            return None
        if token == self.tokenizer.eos_token_id or token in (self.params.stop_token_ids or ()):
            return {"type": "stop", "matched": token}
        return None

    def _length(self) -> FinishReason | None:
        return {"type": "length", "length": self.limit} if len(self.output) >= self.limit else None

    def _end(self) -> None:
        reason = self.finish_reason or {}
        matched = reason.get("matched")
        if reason["type"] == "length":
            del self.output[self.limit :]
            if not self.limit:
                self.text = ""
                return
        if isinstance(matched, str):
            at = self.text.index(matched)
            self.text = self.text[: at + len(matched) if self.params.no_stop_trim else at]
        elif isinstance(matched, int) and not self.params.no_stop_trim:
            self._retract_last(matched)
        if not isinstance(matched, str):
            self.text += self._incremental.finish()

    def _retract_last(self, token: int) -> None:
        """A matched stop token stays in the ids and leaves no text."""
        piece = self.tokenizer.piece(token, skip_special_tokens=self.params.skip_special_tokens).decode(
            errors="replace"
        )
        if piece:
            self.text = self.text.removesuffix(piece)

    def _stop_may_begin(self) -> bool:
        return any(
            self.text.endswith(stop[:length]) for stop in self.params.stop_strs for length in range(1, len(stop) + 1)
        )


def abort_reason(message: str = "Aborted", status: HTTPStatus | None = None, kind: str | None = None) -> FinishReason:
    """SGLang's FINISH_ABORT as it is sent."""
    return {"type": "abort", "message": message, "status_code": status, "err_type": kind}


def stray_request(worker: str) -> StandIn:
    """A request that nobody made."""
    return make(
        "TokenizedGenerateReqInput",
        rid="f" * 32,
        http_worker_ipc=worker,
        input_text=None,
        input_ids=array("q", list(b"stray")),
        input_embeds=None,
        mm_inputs=None,
        token_type_ids=None,
        sampling_params=make("SamplingParams", max_new_tokens=1, stop_strs=[], stop_regex_strs=[], is_normalized=True),
        return_logprob=False,
        logprob_start_len=-1,
        top_logprobs_num=0,
        token_ids_logprob=None,
        stream=True,
    )
