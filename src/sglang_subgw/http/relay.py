"""The relay of one streamed answer: from the callback that received an output to the client's socket, with no task.

A client that reads slowly costs nobody else anything: while its socket is full its samples are only noted, and when it
has caught up each is rendered once, with all that came meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ..worker.answers.sample import Sample
from ..worker.call import Call
from .core.body_stream import Body


async def relay(call: Call, body: Body, render: Callable[[Sample], bytes]) -> None:
    """Write what `render` makes of each sample's news until all have ended; raises what `render` raises."""
    running = _Relay(call, body, render)
    body.on_writable(running.on_writable)
    call.follow(running.on_news)
    try:
        await running.ended
        await body.flush()
    finally:
        body.on_writable(None)


class _Relay:
    def __init__(self, call: Call, body: Body, render: Callable[[Sample], bytes]) -> None:
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._open = len(call.samples)
        self._body = body
        self._render = render
        self._waiting: dict[Sample, None] = {}
        """Samples with news that the client could not take yet."""

    def on_news(self, sample: Sample) -> None:
        if self._body.paused or self._waiting:
            self._waiting[sample] = None
        else:
            self._pass_on(sample)

    def on_writable(self) -> None:
        while self._waiting and not self._body.paused:
            sample = next(iter(self._waiting))
            del self._waiting[sample]
            self._pass_on(sample)

    def _pass_on(self, sample: Sample) -> None:
        if self.ended.done():
            return
        try:
            data = self._render(sample)
            if data:
                self._body.write(data)
        except Exception as exc:
            self.ended.set_exception(exc)
            return
        if sample.finished:
            self._open -= 1
            if not self._open:
                self.ended.set_result(None)
