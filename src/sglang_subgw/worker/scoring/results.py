"""What the engine answered to the prompts of a score, as SGLang's scores."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from ...errors import EngineRejected
from ..answers.outputs import ScoreResult
from .prompts import ScorePrompts
from .request import Labels, ScoreRequest

type Answer = dict[str, Any]
type Row = list[float]


def score_result(request: ScoreRequest, labels: Labels, prompts: ScorePrompts, answers: list[Answer]) -> ScoreResult:
    """The scores; raises EngineRejected for answers that hold none, or not as many as there were places."""
    results = _Results(request, labels)
    if prompts.delimiters is None:
        result = results.each(answers, at_positions=prompts.positions is not None)
    elif prompts.counts is None:
        result = results.between(answers[0], len(prompts.delimiters))
    else:
        result = results.grouped(answers[0], prompts.counts)
    return result


class _Results:
    def __init__(self, request: ScoreRequest, labels: Labels) -> None:
        self._softmax = request.apply_softmax
        self._temperature = request.temperature
        self._labels = labels
        self._states = request.return_pooled_hidden_states
        self._logprobs = request.return_token_logprobs

    def each(self, answers: list[Answer], *, at_positions: bool) -> ScoreResult:
        """One prompt per item: a row of scores for each, or a row for each of its positions."""
        tokens = sum(_prompt_tokens(answer) for answer in answers)
        if not self._labels:
            return self._each_pooled(answers, tokens, at_positions=at_positions)
        scores: list[Any] = []
        logprobs: list[Row] = []
        for answer, labels in zip(answers, self._labels, strict=True):
            side = "input" if at_positions else "output"
            found = answer["meta_info"].get(f"{side}_token_ids_logprobs")
            if not found:
                raise _missing(f"{side}_token_ids_logprobs", answer)
            if at_positions:
                scores.append([self._scores(row, labels) for row in found])
            else:
                scores.append(self._scores(found[0], labels))
                logprobs.append(_of_labels(found[0], labels))
        # SGLang gives none for positions, but the empty list.
        return ScoreResult(scores, tokens, token_logprobs=logprobs if self._logprobs else None)

    def between(self, answer: Answer, count: int) -> ScoreResult:
        """All items in one prompt: a row of scores for each, read before the delimiter that follows it."""
        tokens = _prompt_tokens(answer)
        if not self._labels:
            rows = _matrix(answer)
            if self._softmax:
                rows = [_softmax(row, self._temperature) for row in rows]
            _check_count(answer, len(rows), count)
            states = answer.get("pooled_hidden_state") if self._states else None
            return ScoreResult(rows[1:], tokens, states[1:] if states is not None and len(states) == count else None)
        found = answer["meta_info"].get("input_token_ids_logprobs") or []
        _check_count(answer, len(found), count)
        # What is read before the first item is nobody's.
        pairs = list(zip(found[1:], self._labels, strict=True))
        logprobs = [_of_labels(row, labels) for row, labels in pairs] if self._logprobs else None
        return ScoreResult([self._scores(row, labels) for row, labels in pairs], tokens, token_logprobs=logprobs)

    def grouped(self, answer: Answer, counts: list[int]) -> ScoreResult:
        """All items in one prompt: for each a row of scores per position in it."""
        tokens, total = _prompt_tokens(answer), sum(counts)
        if not self._labels:
            rows = self._position_rows(answer)
            _check_count(answer, len(rows), total)
            states = answer.get("pooled_hidden_state") if self._states else None
            grouped = None if states is None else list(_split(states, counts))
            return ScoreResult(list(_split(rows, counts)), tokens, grouped)
        found = answer["meta_info"].get("input_token_ids_logprobs") or []
        _check_count(answer, len(found), total)
        groups = zip(_split(found, counts), self._labels, strict=True)
        return ScoreResult([[self._scores(row, labels) for row in rows] for rows, labels in groups], tokens)

    def _each_pooled(self, answers: list[Answer], tokens: int, *, at_positions: bool) -> ScoreResult:
        scores: list[Any]
        if at_positions:
            scores = [self._position_rows(answer) for answer in answers]
        else:
            scores = [_embedding(answer) for answer in answers]
            if self._softmax:
                scores = [_softmax(row, self._temperature) for row in scores]
        states = [answer.get("pooled_hidden_state") for answer in answers] if self._states else []
        return ScoreResult(scores, tokens, states if any(state is not None for state in states) else None)

    def _position_rows(self, answer: Answer) -> list[Row]:
        rows = _matrix(answer)
        return [_softmax(row, 1.0) for row in rows] if self._softmax else rows

    def _scores(self, found: Any, labels: list[int]) -> Row:
        values = _of_labels(found, labels)
        if self._softmax:
            return _softmax(values, self._temperature)
        return [math.exp(value) for value in values]


def _of_labels(found: Any, labels: list[int]) -> Row:
    """The log probabilities of the labels, from SGLang's triples."""
    logprobs = {token: logprob for logprob, token, _ in found or ()}
    return [logprobs.get(token, -math.inf) for token in labels]


def _softmax(values: Row, temperature: float) -> Row:
    # Centred before it is scaled, so that small temperatures don't overflow.
    highest = max(values)
    weights = [math.exp((value - highest) / temperature) for value in values]
    total = sum(weights)
    return [weight / total for weight in weights]


def _embedding(answer: Answer) -> Any:
    if (embedding := answer.get("embedding")) is None:
        raise _missing("embedding", answer)
    return embedding


def _matrix(answer: Answer) -> list[Row]:
    rows = _embedding(answer)
    if not (isinstance(rows, list) and rows and all(isinstance(row, list) for row in rows)):
        raise EngineRejected(
            "Scoring at several positions expected a row of scores for each, and got a single vector: this model may "
            "not support it (only SequenceClassification heads that pool per position do).",
            status=400,
            type="BadRequestError",
        )
    return rows


def _split[T](rows: list[T], counts: list[int]) -> Iterable[list[T]]:
    at = 0
    for count in counts:
        yield rows[at : at + count]
        at += count


def _prompt_tokens(answer: Answer) -> int:
    return answer["meta_info"].get("prompt_tokens") or 0


def _check_count(answer: Answer, got: int, expected: int) -> None:
    if got != expected:
        raise EngineRejected(
            f"The engine gave {got} rows of scores, not {expected} (request {answer['meta_info']['id']})."
        )


def _missing(what: str, answer: Answer) -> EngineRejected:
    return EngineRejected(f"The engine's answer has no {what} (request {answer['meta_info']['id']}).")
