"""What every family of calls stands on: the worker, the control messages, and the blocking form of a coroutine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import suppress
from typing import Any

from ..contract import EngineContract
from ..coordination.client import Coordination
from ..errors import RequestRejected
from ..tokenization.tokenizer import ShardTokenizer
from ..worker.call import Call
from ..worker.control import ControlClient
from ..worker.worker import TokenizerWorker

type Output = dict[str, Any]
type Outputs = Output | list[Output]
"""One answer, or a list of them for a batch."""


class EngineCalls:
    """The common part of ShardEngine's families."""

    def __init__(self, worker: TokenizerWorker) -> None:
        self.worker = worker

    @property
    def contract(self) -> EngineContract:
        """What the engine published about itself when it started."""
        return self.worker.contract

    @property
    def tokenizer(self) -> ShardTokenizer:
        """The shard's own tokenizer."""
        return self.worker.tokenizer

    @property
    def control(self) -> ControlClient:
        """Control messages with an answer."""
        return self.worker.control

    @property
    def coordination(self) -> Coordination:
        """What the workers of this engine agree on."""
        return self.worker.coordination

    async def _outputs(self, call: Call) -> Outputs:
        """What a call that isn't a stream gives, once it has ended."""
        async with call:
            await call.wait()
            outputs = [sample.output() for sample in call.samples]
        return outputs[0] if call.is_single else outputs

    def _blocking[T](self, coroutine: Coroutine[Any, Any, T]) -> T:
        """The coroutine's result, from any thread but the loop's own, where it raises RuntimeError."""
        try:
            self._check_thread(getattr(coroutine, "__name__", "this"))
        except RuntimeError:
            coroutine.close()
            raise
        return asyncio.run_coroutine_threadsafe(coroutine, self.worker.loop).result()

    def _blocking_iterator[T](self, stream: AsyncIterator[T], name: str) -> Iterator[T]:
        """The stream's items, likewise; one that is given up early is closed."""
        self._check_thread(name)
        return self._iterate(stream)

    def _iterate[T](self, stream: AsyncIterator[T]) -> Iterator[T]:
        async def following() -> T:
            return await anext(stream)

        async def close() -> None:
            with suppress(AttributeError):
                await stream.aclose()  # type: ignore[attr-defined]

        try:
            while True:
                try:
                    item = self._blocking(following())
                except StopAsyncIteration:
                    return
                yield item
        finally:
            self._blocking(close())

    def _is_here(self) -> bool:
        """Whether this is the thread of the shard's loop, while it runs something."""
        try:
            return asyncio.get_running_loop() is self.worker.loop
        except RuntimeError:
            return False

    def _check_thread(self, name: str) -> None:
        if self._is_here():
            raise RuntimeError(
                f"{name.removeprefix('async_')} would block the event loop that must answer it: await {name} instead."
            )


def check_text(**values: Any) -> None:
    """Raise RequestRejected for a parameter that is no text, or an empty one."""
    for name, value in values.items():
        if not isinstance(value, str) or not value:
            raise RequestRejected(f"{name} must be a non-empty string, got {value!r}.", param=name)
