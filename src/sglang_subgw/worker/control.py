"""Control messages that the engine answers: one at a time per kind, as answers carry no correlation id."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from ..errors import EngineUnavailable, RequestError


class ControlClient:
    """Asks the engine and collects one answer per data-parallel rank."""

    def __init__(self, send: Callable[[str, dict[str, Any]], None], ranks: int) -> None:
        self._send = send
        self._ranks = max(ranks, 1)
        self._locks: dict[str, asyncio.Lock] = {}
        self._waiting: dict[str, _Answers] = {}
        self._late: dict[str, int] = {}
        self._failure: RequestError | None = None

    async def ask(
        self, kind: str, fields: dict[str, Any], answer_kind: str, timeout: float | None
    ) -> list[dict[str, Any]]:
        """The answers' fields; raises EngineUnavailable when they don't all arrive within `timeout` seconds.

        None waits for as long as the engine lives. The wait for other questions of this kind is part of it.
        """
        try:
            async with asyncio.timeout(timeout), self._locks.setdefault(answer_kind, asyncio.Lock()):
                return await self._ask(kind, fields, answer_kind)
        except TimeoutError:
            raise EngineUnavailable(f"The engine did not answer {kind} within {timeout or 0:g} s.") from None

    async def _ask(self, kind: str, fields: dict[str, Any], answer_kind: str) -> list[dict[str, Any]]:
        if self._failure is not None:
            raise self._failure
        self._send(kind, fields)
        answers = self._waiting[answer_kind] = _Answers(self._ranks)
        try:
            return await answers.done
        finally:
            del self._waiting[answer_kind]
            # Answers to a question that was given up must not count for the next one.
            if answers.missing and self._failure is None:
                self._late[answer_kind] = self._late.get(answer_kind, 0) + answers.missing

    def on_answer(self, kind: str, fields: dict[str, Any]) -> bool:
        """Take a message that may be an answer; False if nobody asked for it."""
        if self._late.get(kind):
            self._late[kind] -= 1
            return True
        answers = self._waiting.get(kind)
        if answers is None:
            return False
        answers.add(fields)
        return True

    def fail(self, error: RequestError) -> None:
        """End every question, and every later one, with `error`."""
        self._failure = error
        for answers in self._waiting.values():
            answers.fail(error)


class _Answers:
    def __init__(self, expected: int) -> None:
        self.missing = expected
        self.done: asyncio.Future[list[dict[str, Any]]] = asyncio.get_running_loop().create_future()
        self._got: list[dict[str, Any]] = []

    def add(self, fields: dict[str, Any]) -> None:
        self.missing -= 1
        self._got.append(fields)
        if self.missing == 0 and not self.done.done():
            self.done.set_result(self._got)

    def fail(self, error: RequestError) -> None:
        if not self.done.done():
            self.done.set_exception(error)
