"""One client call: all samples that it waits for, and the one event that wakes it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Self

from .answers.sample import Sample


class Call:
    """The running samples of one request, in the order of its answers (prompt-major).

    Leaving `async with call:` aborts in the engine, exactly once, each sample that hasn't finished.
    """

    __slots__ = ("_abort", "_event", "_news", "_open", "is_single", "samples", "stream")

    def __init__(
        self, samples: list[Sample], *, is_single: bool, stream: bool, abort: Callable[[Sample], None]
    ) -> None:
        self.samples = samples
        self.is_single = is_single
        """The answer is one dict, not a list of them."""
        self.stream = stream
        self._abort = abort
        self._event = asyncio.Event()
        self._news: deque[Sample] = deque()
        self._open = 0
        for sample in samples:
            if sample.finished:
                self._notify(sample)
            else:
                self._open += 1
                sample.on_news = self._notify

    @property
    def finished(self) -> bool:
        """Every sample has ended."""
        return all(sample.finished for sample in self.samples)

    async def wait(self) -> None:
        """Until all samples have finished; raises the error of one that failed, as soon as it fails."""
        while True:
            for sample in self.samples:
                if sample.error is not None:
                    raise sample.error
            if self._open == 0:
                return
            self._event.clear()
            await self._event.wait()

    async def first(self) -> None:
        """Until a sample has news; raises the error of a sample that failed before any output."""
        while not self._news and self._open:
            self._event.clear()
            await self._event.wait()
        for sample in self.samples:
            if sample.error is not None and not sample.has_output:
                raise sample.error

    async def __aiter__(self) -> AsyncIterator[Sample]:
        """Samples with news, the last one of each with `finished`.

        Read a sample's state before the next await: what arrives meanwhile is announced again.
        """
        while True:
            while self._news:
                sample = self._news.popleft()
                sample.queued = False
                yield sample
            if self._open == 0:
                return
            self._event.clear()
            await self._event.wait()

    def follow(self, follower: Callable[[Sample], None]) -> None:
        """Call `follower` with each sample that has news, when they arrive, from now on in place of iteration.

        It is called at once for those that have news already, and for each sample lastly when it has finished.
        """
        for sample in self.samples:
            if not sample.finished:
                sample.on_news = follower
        while self._news:
            follower(self._news.popleft())

    def cancel(self) -> None:
        """Abort, in the engine, every sample that hasn't finished; safe to call at any time."""
        for sample in self.samples:
            if not sample.finished:
                self._abort(sample)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.cancel()

    def _notify(self, sample: Sample) -> None:
        if sample.finished and sample.on_news is not None:
            sample.on_news = None
            self._open -= 1
        elif not sample.finished and not sample.stream:
            return
        if not sample.queued:
            sample.queued = True
            self._news.append(sample)
        self._event.set()
