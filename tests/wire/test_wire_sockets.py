"""A shard's sockets, with real zmq on the other side."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import zmq
from wire_values import wire_facts

from sglang_subgw.errors import WireError
from sglang_subgw.wire.sockets import WorkerSocket


def test_frames_go_both_ways_and_no_file_is_left(tmp_path: Path) -> None:
    async def run() -> None:
        with zmq.Context() as context, context.socket(zmq.PULL) as router, context.socket(zmq.PUSH) as engine:
            router.bind(f"ipc://{tmp_path}/router")
            socket = WorkerSocket(wire_facts("pickle", tmp_path), f"ipc://{tmp_path}/shard", asyncio.get_running_loop())
            got: list[bytes] = []
            done = asyncio.Event()

            def on_frames(frames: list[bytes]) -> None:
                assert 0 < len(frames) <= 256, "others on the loop have their turn"
                got.extend(frames)
                if len(got) == 3000:
                    done.set()

            engine.connect(f"ipc://{tmp_path}/shard")
            engine.send(b"before the start")
            socket.start(on_frames)
            for number in range(2999):
                engine.send(str(number).encode())
            async with asyncio.timeout(10):
                await done.wait()
            assert got == [b"before the start", *(str(number).encode() for number in range(2999))]
            socket.send(b"a request")
            assert router.poll(5000)
            assert router.recv() == b"a request"
            socket.close()
            socket.close()

    asyncio.run(run())
    assert [path.name for path in tmp_path.iterdir()] in ([], ["router"])


def test_a_restarted_shard_takes_over_the_name(tmp_path: Path) -> None:
    left_behind = tmp_path / "shard"

    async def run() -> None:
        with zmq.Context() as context, context.socket(zmq.PUSH) as engine:
            endpoint = f"ipc://{left_behind}"
            engine.connect(endpoint)
            for number in range(2):
                # The first life's file is left, as by a shard that was killed.
                left_behind.touch()
                socket = WorkerSocket(wire_facts("pickle", tmp_path), endpoint, asyncio.get_running_loop())
                got: asyncio.Queue[list[bytes]] = asyncio.Queue()
                socket.start(got.put_nowait)
                engine.send(b"%d" % number)
                async with asyncio.timeout(10):
                    assert await got.get() == [b"%d" % number]
                socket.close()

    asyncio.run(run())


def test_a_socket_that_cannot_be_bound_says_so(tmp_path: Path) -> None:
    async def run() -> None:
        with pytest.raises(WireError, match="missing"):
            WorkerSocket(wire_facts("pickle", tmp_path), f"ipc://{tmp_path}/missing/shard", asyncio.get_running_loop())

    asyncio.run(run())


def test_close_in_a_callback_ends_the_reading(tmp_path: Path) -> None:
    async def run() -> None:
        with zmq.Context() as context, context.socket(zmq.PUSH) as engine:
            socket = WorkerSocket(wire_facts("pickle", tmp_path), f"ipc://{tmp_path}/shard", asyncio.get_running_loop())
            calls = 0
            closed = asyncio.Event()

            def on_frames(frames: list[bytes]) -> None:
                nonlocal calls
                calls += 1
                socket.close()
                closed.set()

            engine.linger = 0
            engine.connect(f"ipc://{tmp_path}/shard")
            for _ in range(300):
                engine.send(b"x")
            socket.start(on_frames)
            async with asyncio.timeout(10):
                await closed.wait()
            await asyncio.sleep(0.01)
            assert calls == 1

    asyncio.run(run())
