"""Frames from workers to the scheduler: passed on as they came, but for those that the router must see."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import zmq
import zmq.asyncio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sglang_subgw.engine.patches.router import Forwarder
from sglang_subgw.simulated.wire.frames import frame_codec
from sglang_subgw.simulated.wire.structs import make


class Wires:
    """A worker's socket, a scheduler's, and the forwarder between them."""

    def __init__(self, directory: Path) -> None:
        self._ours, self._others = zmq.asyncio.Context(), zmq.Context()
        source, target = self._ours.socket(zmq.PULL), self._ours.socket(zmq.PUSH)
        source.bind(f"ipc://{directory}/w")
        target.bind(f"ipc://{directory}/s")
        self.worker, self._scheduler = self._others.socket(zmq.PUSH), self._others.socket(zmq.PULL)
        self.worker.connect(f"ipc://{directory}/w")
        self._scheduler.connect(f"ipc://{directory}/s")
        self._target = target
        self.forwarder = Forwarder(source, target, asyncio.get_running_loop())

    async def forwarded(self) -> bytes:
        """What the scheduler gets next."""
        async with asyncio.timeout(5):
            while True:
                try:
                    return self._scheduler.recv(zmq.NOBLOCK)
                except zmq.Again:
                    await asyncio.sleep(0.001)

    def close(self) -> None:
        self.forwarder.close(linger=0)
        self._target.close(linger=0)
        self._ours.term()
        self._others.destroy(linger=0)


def with_wires(directory: Path, scenario: Callable[[Wires], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        wires = Wires(directory)
        try:
            await scenario(wires)
        finally:
            wires.close()

    asyncio.run(run())


@pytest.mark.parametrize("codec", ["pickle", "msgpack"])
def test_requests_go_on_byte_for_byte_and_in_order(tmp_path: Path, codec: str) -> None:
    if codec == "msgpack":
        pytest.importorskip("msgspec")
    encode = frame_codec(codec).encode
    frames = [encode(make("AbortReq", rid=f"{i:032x}", http_worker_ipc="ipc:///tmp/w")) for i in range(600)]

    async def scenario(wires: Wires) -> None:
        for frame in frames:
            wires.worker.send(frame)
        assert [await wires.forwarded() for _ in frames] == frames

    with_wires(tmp_path, scenario)


@pytest.mark.parametrize("codec", ["pickle", "msgpack"])
@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("TokenizerWorkerRegistrationReq", {"worker_ipc_name": "ipc:///tmp/w"}),
        ("PauseGenerationReqInput", {"mode": "in_place"}),
        ("ContinueGenerationReqInput", {}),
    ],
)
def test_the_routers_own_are_kept_for_it(tmp_path: Path, codec: str, kind: str, fields: dict[str, Any]) -> None:
    if codec == "msgpack":
        pytest.importorskip("msgspec")
    encode = frame_codec(codec).encode
    own = encode(make(kind, http_worker_ipc="ipc:///tmp/w", **fields))
    other = encode(make("AbortReq", rid="r"))

    async def scenario(wires: Wires) -> None:
        wires.worker.send(own)
        wires.worker.send(other)
        assert await wires.forwarded() == other
        async with asyncio.timeout(5):
            assert await wires.forwarder.recv() == own

    with_wires(tmp_path, scenario)


def test_what_is_no_message_is_dropped_and_stops_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    good = pickle.dumps({"fine": 1})
    unreadable = b"\x80\x04cnowhere\nPauseGenerationReqInput\n."
    pause = pickle.dumps("PauseGenerationReqInput")

    async def scenario(wires: Wires) -> None:
        for frame in (b"", b"junk", b"\x80\x05cut", b"\x01", good, unreadable, pause):
            wires.worker.send(frame)
        assert await wires.forwarded() == good
        async with asyncio.timeout(5):
            assert await wires.forwarder.recv_pyobj() == "PauseGenerationReqInput"
        assert wires.forwarder.dropped == 5
        assert caplog.text.count("The router dropped a frame of") == 1, "the others are only counted for a while"

    with_wires(tmp_path, scenario)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.binary(max_size=300), min_size=1, max_size=20))
def test_every_frame_has_exactly_one_end(tmp_path_factory: pytest.TempPathFactory, bodies: list[bytes]) -> None:
    frames = [b"\x80" + body + b"." for body in bodies] + bodies

    async def scenario(wires: Wires) -> None:
        for frame in (*frames, b"\x80last."):
            wires.worker.send(frame)
        got = []
        while (frame := await wires.forwarded()) != b"\x80last.":
            got.append(frame)
        assert len(got) + len(wires.forwarder._kept) + wires.forwarder.dropped == len(frames)
        assert got == [frame for frame in frames if frame in got]

    with_wires(tmp_path_factory.mktemp("w"), scenario)
