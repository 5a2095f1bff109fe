"""A router of SGLang's that runs already is made to forward frames, and loses none on the way."""

from __future__ import annotations

import asyncio
import pickle
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq
import zmq.asyncio

from sglang_subgw.engine.patches import router as routing
from sglang_subgw.engine.patches.router import Forwarder, forward_from_now_on
from sglang_subgw.errors import EngineStartError
from support.faults import until


class Router:
    """As SGLang's: a loop in a thread, in which a task decodes each frame of the workers and sends it on."""

    def __init__(self, directory: Path) -> None:
        self.endpoint, self.scheduler = f"ipc://{directory}/w", f"ipc://{directory}/s"
        self.seen: list[Any] = []
        context = zmq.asyncio.Context()
        self._context = context
        self.receive_from_worker = context.socket(zmq.PULL)
        self.send_to_scheduler = context.socket(zmq.PUSH)
        self.receive_from_worker.bind(self.endpoint)
        self.send_to_scheduler.bind(self.scheduler)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self._task = asyncio.run_coroutine_threadsafe(self.router_worker_obj(), self._loop)

    async def router_worker_obj(self) -> None:
        while True:
            message = await self.receive_from_worker.recv_pyobj()
            self.seen.append(message)
            if not str(message).startswith("TokenizerWorkerRegistrationReq"):
                await self.send_to_scheduler.send_pyobj(message)

    def close(self) -> None:
        async def end() -> None:
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self.receive_from_worker.close(linger=0)
            self.send_to_scheduler.close(linger=0)
            self._loop.stop()

        asyncio.run_coroutine_threadsafe(end(), self._loop)
        self._thread.join()
        self._loop.close()
        self._context.term()


class Ends:
    """A worker, and the scheduler."""

    def __init__(self, router: Router) -> None:
        self._context = zmq.Context()
        self.worker, self.scheduler = self._context.socket(zmq.PUSH), self._context.socket(zmq.PULL)
        self.worker.connect(router.endpoint)
        self.scheduler.connect(router.scheduler)
        self.scheduler.rcvtimeo = 5000

    def through(self, message: Any) -> Any:
        self.worker.send_pyobj(message)
        return self.scheduler.recv_pyobj()

    def close(self) -> None:
        self._context.destroy(linger=0)


@pytest.fixture(autouse=True)
def registration(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without SGLang there is no class of its name."""

    def register_again(endpoint: str, worker: str) -> None:
        with zmq.Context() as context, context.socket(zmq.PUSH) as socket:
            socket.connect(endpoint)
            socket.send_pyobj(f"TokenizerWorkerRegistrationReq {worker}")

    monkeypatch.setattr(routing, "_register_again", register_again)


@pytest.fixture
def router(tmp_path: Path) -> Iterator[Router]:
    router = Router(tmp_path)
    yield router
    router.close()


@pytest.fixture
def ends(router: Router) -> Iterator[Ends]:
    ends = Ends(router)
    yield ends
    ends.close()


def test_from_then_on_it_forwards_without_decoding(router: Router, ends: Ends):
    assert ends.through("before") == "before"
    forward_from_now_on(router, router.endpoint, "ipc:///own")
    assert isinstance(router.receive_from_worker, Forwarder)
    assert ends.through("after") == "after"
    until(lambda: router.seen == ["before", "TokenizerWorkerRegistrationReq ipc:///own"])
    taken_over = router.receive_from_worker
    forward_from_now_on(router, router.endpoint, "ipc:///own")
    assert router.receive_from_worker is taken_over


def test_what_is_on_its_way_meanwhile_arrives_once_and_in_order(router: Router, ends: Ends):
    for number in range(2000):
        ends.worker.send_pyobj(number)
        if number == 500:
            forward_from_now_on(router, router.endpoint, "ipc:///own")
    assert [ends.scheduler.recv_pyobj() for _ in range(2000)] == list(range(2000))


def test_a_frame_that_would_have_ended_it_is_dropped(router: Router, ends: Ends):
    forward_from_now_on(router, router.endpoint, "ipc:///own")
    for frame in (b"junk", b"\x80", pickle.dumps("whole")[:-1]):
        ends.worker.send(frame)
    assert ends.through("after") == "after"
    assert router.receive_from_worker.dropped == 3
    assert not router._task.done()


def test_one_that_has_ended_is_said_to(router: Router, ends: Ends):
    ends.worker.send(b"junk")
    with pytest.raises(pickle.UnpicklingError):
        router._task.result(5)
    with pytest.raises(EngineStartError, match="The router of this Engine has ended"):
        forward_from_now_on(router, router.endpoint, "ipc:///own")
