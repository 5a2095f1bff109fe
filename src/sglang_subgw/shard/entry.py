"""Entry of a shard, the same in every mode: attach to the engine, serve what the gateway hands over, drain, end."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import socket
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any

from ..contract import Segment, ShardState, Word
from ..engine_api.engine import ShardEngine
from ..engine_api.info import ShardInfo
from ..errors import EngineUnavailable, ShardFailed, SubgwError
from ..system.channel import Channel, ChannelClosedError, DescriptorLostError
from ..system.seldom import Seldom
from ..worker.worker import TokenizerWorker
from .application import make_server
from .coroutine_server import CoroutineServer
from .critical_tasks import Vital
from .runtime import configure_logging, loop_factory
from .server import ShardServer
from .spec import ShardSpec

log = logging.getLogger("sglang_subgw.shard")

_HEARTBEAT_SECONDS = 0.5
_GIVE_UP_SECONDS = 1.0


def main(spec_json: str) -> None:
    """Run one shard from its start to its end; a failure is told over the channel, then raised."""
    spec = ShardSpec.from_json(spec_json)
    # A copy: the host keeps the original, which ends with the shard's place even if nothing here ever ran.
    channel = Channel.from_fd(os.dup(spec.channel_fd))
    configure_logging(spec)
    shard = _Shard(spec, channel)
    try:
        with asyncio.Runner(loop_factory=loop_factory(spec.config.loop)) as runner:
            try:
                runner.run(shard.run())
            except (SystemExit, KeyboardInterrupt) as exc:
                # It has left the loop, of which nothing else knows yet.
                runner.run(shard.give_up(exc))
                raise
    except asyncio.CancelledError:
        _tell(channel, "stopped")
    except BaseException as exc:
        shard.tell_failed(exc)
        raise SystemExit(1) from None
    finally:
        channel.close()


class _Shard:
    def __init__(self, spec: ShardSpec, channel: Channel) -> None:
        self._spec = spec
        self._channel = channel
        self._orphaned = False
        self._told_failed = False
        self._lost = Seldom(log)
        self._drain_task: asyncio.Task[None] | None = None
        self._server: ShardServer | CoroutineServer | None = None
        self._handlers: dict[str, Callable[..., None]] = {
            "connection": self._on_connection,
            "listen": self._on_listen,
            "share": self._on_share,
            "drain": self._on_drain,
            "retire": self._on_retire,
            "abort": self._on_abort,
            "fail": self._on_fail,
        }

    async def run(self) -> None:
        spec = self._spec
        loop = asyncio.get_running_loop()
        self._main = asyncio.current_task()
        self._channel.setblocking(False)
        loop.set_exception_handler(self._on_stray_error)
        vital = self._vital = Vital()
        loop.add_reader(self._channel.fileno(), vital.guard("channel to the gateway", self._on_channel))
        with Segment.attach(spec.segment) as segment:
            slot = self._slot = segment.slots[spec.index]
            slot.begin(spec.generation)
            slot.set(Word.THREAD_ID, threading.get_native_id())
            contract = segment.contract()
            worker = TokenizerWorker(contract, slot, spec.index, spec.generation)
            heartbeat = vital.task("heartbeat", self._beat(worker))
            info = ShardInfo.of(
                contract,
                index=spec.index,
                count=spec.config.shards,
                generation=spec.generation,
                mode=spec.config.mode,
            )
            self._engine = ShardEngine(worker, segment.slots, info)
            self._engine.broadcast_abort = self._broadcast_abort
            try:
                await worker.start(lambda exc: vital.fail("connection to the engine", exc))
                server = await make_server(self._engine, info, spec.config, slot)
                serving = self._serving = vital.task("server", server.serve())
                try:
                    await self._first_answer()
                    await server.wait_started(serving)
                except asyncio.CancelledError:
                    server.give_up_start()
                    raise
                self._announce(server)
                try:
                    await vital.hold(serving, may_end=lambda: self._drain_task is not None)
                except ShardFailed as exc:
                    await self.give_up(exc)
                    raise
            finally:
                loop.remove_reader(self._channel.fileno())
                heartbeat.cancel()
                if self._drain_task is not None:
                    self._drain_task.cancel()
                await worker.close()
                slot.set(Word.STATE, ShardState.STOPPED)
        if not self._orphaned:
            _tell(self._channel, "stopped")

    async def _first_answer(self) -> None:
        timeout = self._spec.config.health_timeout_seconds
        if not await self._engine.health_generate(timeout):
            raise EngineUnavailable(f"The engine did not answer the shard's first request within {timeout:g} s.")

    def _announce(self, server: ShardServer | CoroutineServer) -> None:
        """Ready means: registered, receiving, one request answered by the engine, the server up."""
        if self._spec.isolated:
            # What start-up made lives as long as the shard: no collection needs to look at it, then or later.
            gc.freeze()
            gc.enable()
        self._server = server
        # The application's start may have kept the loop from turning; that is over, and was no stall.
        self._slot.beat()
        self._slot.set(Word.START_US, (time.monotonic_ns() - self._spec.created_ns) // 1000)
        self._slot.set(Word.STATE, ShardState.READY)
        _tell(self._channel, "ready")

    def tell_failed(self, exc: BaseException) -> None:
        """Tell the gateway, once, which then gives this shard no more connections."""
        if self._told_failed:
            return
        self._told_failed = True
        text = "".join(traceback.format_exception(exc))
        _tell(self._channel, "failed", reason=_reason(exc)[:2000], traceback=text[-8000:])

    async def give_up(self, exc: BaseException) -> None:
        """After a failure: what runs ends with an error, and its connections move on to other shards."""
        self.tell_failed(exc)
        if self._server is None:
            return
        self._engine.fail_all(EngineUnavailable(f"This part of the server failed: {_reason(exc)}."), for_good=True)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_GIVE_UP_SECONDS):
                await self._server.retire(self._give_away, _GIVE_UP_SECONDS)
                await asyncio.wait([self._serving])

    def _on_stray_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        # A callback or task that nothing waits for: most often the application's own.
        log.error("Shard %d: %s", self._spec.index, context["message"], exc_info=context.get("exception"))

    async def _beat(self, worker: TokenizerWorker) -> None:
        while True:
            self._slot.beat()
            worker.look()
            await asyncio.sleep(_HEARTBEAT_SECONDS)

    def _on_channel(self) -> None:
        while True:
            try:
                message, fds = self._channel.receive()
            except BlockingIOError:
                return
            except DescriptorLostError as exc:
                self._on_lost(exc)
                continue
            except ChannelClosedError:
                self._on_leader_gone()
                return
            self._handlers[message.pop("kind")](*fds, **message)

    def _on_connection(self, fd: int, idle: bool) -> None:
        sock = socket.socket(fileno=fd)
        sock.setblocking(False)
        assert isinstance(self._server, ShardServer)  # only a ready one is handed connections
        self._server.adopt(sock, idle=idle)

    def _on_lost(self, exc: DescriptorLostError) -> None:
        if exc.kind != "connection":
            raise exc
        # It is no longer on its way here.
        self._slot.add(Word.CONNECTIONS_SEEN)
        self._lost.error("Shard %d lost a connection: %s.", self._spec.index, exc)

    def _on_listen(self, fd: int) -> None:
        assert isinstance(self._server, ShardServer)
        self._server.listen(socket.socket(fileno=fd), self._spec.config.backlog)

    def _on_share(self, limit: int) -> None:
        if self._drain_task is None and isinstance(self._server, ShardServer):
            self._server.share(self._give_away, limit)

    def _on_drain(self, timeout: float) -> None:
        if self._server is None:
            assert self._main is not None
            self._main.cancel()
        else:
            # A second one is for those that won't wait as long as the first.
            if self._drain_task is not None:
                self._vital.cancel(self._drain_task)
            self._drain_task = self._vital.task("drain", self._drain(self._server, timeout))

    async def _drain(self, server: ShardServer | CoroutineServer, timeout: float) -> None:
        self._slot.set(Word.STATE, ShardState.DRAINING)
        self._engine.end.begun.set()
        await server.drain(timeout)
        await self._time_is_up(timeout, "The server is stopping")

    def _on_retire(self, timeout: float) -> None:
        if self._drain_task is None and self._server is not None:
            self._drain_task = self._vital.task("drain", self._retire(self._server, timeout))

    async def _retire(self, server: ShardServer | CoroutineServer, timeout: float) -> None:
        self._slot.set(Word.STATE, ShardState.DRAINING)
        async with asyncio.TaskGroup() as group:
            late = group.create_task(self._time_is_up(timeout, "This part of the server ends"))
            await server.retire(self._give_away, timeout)
            late.cancel()

    async def _time_is_up(self, timeout: float, why: str) -> None:
        await asyncio.sleep(timeout)
        self._engine.fail_all(
            EngineUnavailable(f"{why}, and this request did not end within the {timeout:g} s given to it.")
        )

    def _give_away(self, fd: int) -> bool:
        try:
            self._channel.send("connection", fds=(fd,))
        except (BlockingIOError, ChannelClosedError):
            return False
        return True

    def _broadcast_abort(self, rid: str) -> None:
        _tell(self._channel, "abort", rid=rid)

    def _on_abort(self, rid: str) -> None:
        self._engine.abort_local(rid)

    def _on_fail(self, reason: str) -> None:
        # The engine is gone: what is in flight ends with an error, and so does what still comes.
        self._engine.fail_all(EngineUnavailable(reason), for_good=True)

    def _on_leader_gone(self) -> None:
        self._orphaned = True
        if os.getpid() != self._spec.leader_pid:
            # Nobody is left to drain for: the engine ended with the leader.
            os._exit(1)
        asyncio.get_running_loop().remove_reader(self._channel.fileno())
        self._on_drain(0.0)


def _reason(exc: BaseException) -> str:
    return str(exc) if isinstance(exc, SubgwError) else f"{type(exc).__name__}: {exc}"


def _tell(channel: Channel, kind: str, **fields: Any) -> None:
    try:
        channel.send(kind, **fields)
    except (ChannelClosedError, BlockingIOError) as exc:
        log.warning("The gateway did not take the message %r: %s", kind, exc)
