"""A shard's sockets, with real zmq on the other side, or something that isn't zmq at all."""

from __future__ import annotations

import asyncio
import errno
import os
import socket as plain
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import zmq

from sglang_subgw.errors import WireError
from sglang_subgw.wire.sockets import WorkerSocket
from sglang_subgw.wire.zmtp.protocol import hello
from support.wire_values import wire_facts

type LoopFactory = Callable[[], asyncio.AbstractEventLoop]


@pytest.fixture(params=["asyncio", "uvloop"])
def loop_factory(request: pytest.FixtureRequest) -> LoopFactory:
    """They tell differently of a peer that is gone."""
    return asyncio.new_event_loop if request.param == "asyncio" else pytest.importorskip("uvloop").new_event_loop


def test_frames_go_both_ways_and_no_file_is_left(tmp_path: Path, loop_factory: LoopFactory) -> None:
    async def run() -> None:
        with zmq.Context() as context, context.socket(zmq.PULL) as router, context.socket(zmq.PUSH) as engine:
            engine.set_hwm(0)
            router.bind(f"ipc://{tmp_path}/router")
            socket = open_socket(tmp_path)
            got: list[bytes] = []
            done = asyncio.Event()

            def on_frames(frames: list[bytes]) -> None:
                assert frames
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

    asyncio.run(run(), loop_factory=loop_factory)
    assert [path.name for path in tmp_path.iterdir()] in ([], ["router"])


def test_a_restarted_shard_takes_over_the_name(tmp_path: Path, loop_factory: LoopFactory) -> None:
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

    asyncio.run(run(), loop_factory=loop_factory)


def test_a_socket_that_cannot_be_bound_says_so(tmp_path: Path, loop_factory: LoopFactory) -> None:
    async def run() -> None:
        with pytest.raises(WireError, match="missing"):
            WorkerSocket(wire_facts("pickle", tmp_path), f"ipc://{tmp_path}/missing/shard", asyncio.get_running_loop())

    asyncio.run(run(), loop_factory=loop_factory)


def test_a_path_that_is_too_long_says_what_to_do(tmp_path: Path, loop_factory: LoopFactory) -> None:
    async def run() -> None:
        with pytest.raises(WireError, match="too long.*set TMPDIR to a directory with a shorter path"):
            WorkerSocket(wire_facts("pickle", tmp_path), f"ipc://{tmp_path}/{'x' * 108}", asyncio.get_running_loop())

    asyncio.run(run(), loop_factory=loop_factory)


def test_close_in_a_callback_ends_the_reading(tmp_path: Path, loop_factory: LoopFactory) -> None:
    async def run() -> None:
        with zmq.Context() as context, context.socket(zmq.PUSH) as engine:
            socket = open_socket(tmp_path)
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
                engine.send(bytes(4000))
            socket.start(on_frames)
            async with asyncio.timeout(10):
                await closed.wait()
            await asyncio.sleep(0.01)
            assert calls == 1

    asyncio.run(run(), loop_factory=loop_factory)


def test_a_router_that_comes_later_gets_all_in_order(tmp_path: Path, loop_factory: LoopFactory) -> None:
    frames = [b"%d" % number for number in range(500)] + [bytes(range(256)) * 40_000, b"last"]

    async def run() -> None:
        socket = open_socket(tmp_path)
        for frame in frames[:200]:
            socket.send(frame)
        with zmq_router(tmp_path) as router:
            for frame in frames[200:]:
                socket.send(frame)
            assert await asyncio.to_thread(received, router, len(frames)) == frames
        socket.close()

    asyncio.run(run(), loop_factory=loop_factory)


def test_a_frame_that_was_cut_off_is_sent_whole_to_the_next_router(tmp_path: Path, loop_factory: LoopFactory) -> None:
    large = bytes(range(256)) * 40_000

    async def run() -> None:
        with raw_router(tmp_path) as listener:
            socket = open_socket(tmp_path)
            first, _ = listener.accept()
            first.sendall(hello("PULL"))
            socket.send(b"small")
            socket.send(large)
            read = bytearray()
            while len(read) < 100_000:
                read += await asyncio.to_thread(first.recv, 4096)
            assert read.count(b"small") == 1
            first.close()
        with zmq_router(tmp_path) as router:
            socket.send(b"after it")
            assert await asyncio.to_thread(received, router, 2) == [large, b"after it"]
        socket.close()

    asyncio.run(run(), loop_factory=loop_factory)


def test_what_waits_is_sent_before_it_closes(tmp_path: Path, loop_factory: LoopFactory) -> None:
    large = bytes(10_000_000)

    async def run() -> None:
        with zmq_router(tmp_path) as router:
            # It has not even been greeted.
            socket = open_socket(tmp_path)
            socket.send(large)
            socket.send(b"the end")
            socket.close()
            assert received(router, 2) == [large, b"the end"]

    asyncio.run(run(), loop_factory=loop_factory)


def test_a_router_that_reads_nothing_does_not_keep_it_from_closing(tmp_path: Path, loop_factory: LoopFactory) -> None:
    async def run() -> None:
        with raw_router(tmp_path):
            socket = open_socket(tmp_path)
            socket.send(b"x")
            socket.close()

    asyncio.run(run(), loop_factory=loop_factory)


def test_what_is_not_zmq_is_sent_away_and_the_engine_is_still_heard(
    tmp_path: Path, loop_factory: LoopFactory, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        socket = open_socket(tmp_path)
        got: asyncio.Queue[list[bytes]] = asyncio.Queue()
        socket.start(got.put_nowait)
        reader, writer = await asyncio.open_unix_connection(tmp_path / "shard")
        writer.write(b"GET / HTTP/1.1\r\n\r\n")
        async with asyncio.timeout(10):
            await reader.read()
        writer.close()
        with zmq.Context() as context, context.socket(zmq.PUSH) as engine:
            engine.connect(f"ipc://{tmp_path}/shard")
            engine.send(b"hello")
            async with asyncio.timeout(10):
                assert await got.get() == [b"hello"]
        socket.close()

    asyncio.run(run(), loop_factory=loop_factory)
    assert "is not an engine, and was hung up on: no greeting of ZMTP but b'GET / HTTP'" in caplog.text


def test_what_is_not_a_router_is_said_and_tried_again(
    tmp_path: Path, loop_factory: LoopFactory, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        with raw_router(tmp_path) as listener:
            socket = open_socket(tmp_path)
            wrong, _ = listener.accept()
            wrong.sendall(hello("PUSH"))
            socket.send(b"a request")
            async with asyncio.timeout(10):
                while not caplog.text:
                    await asyncio.sleep(0.01)
            wrong.close()
        with zmq_router(tmp_path) as router:
            assert await asyncio.to_thread(received, router, 1) == [b"a request"]
        socket.close()

    asyncio.run(run(), loop_factory=loop_factory)
    assert "not an engine's router, and was hung up on: a socket of kind b'PUSH'" in caplog.text


def test_an_engine_that_finds_no_descriptor_left_is_heard_later(
    tmp_path: Path, loop_factory: LoopFactory, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    refusals = iter([errno.EMFILE, errno.EMFILE])
    accept = plain.socket.accept

    def refused(self: plain.socket) -> Any:
        for code in refusals:
            raise OSError(code, "Too many open files")
        return accept(self)

    async def run() -> None:
        socket = open_socket(tmp_path)
        got: asyncio.Queue[list[bytes]] = asyncio.Queue()
        socket.start(got.put_nowait)
        with zmq.Context() as context, context.socket(zmq.PUSH) as engine:
            monkeypatch.setattr(plain.socket, "accept", refused)
            engine.connect(f"ipc://{tmp_path}/shard")
            engine.send(b"hello")
            async with asyncio.timeout(10):
                assert await got.get() == [b"hello"]
        socket.close()

    asyncio.run(run(), loop_factory=loop_factory)
    assert "Too many open files" in caplog.text


def test_a_failing_reader_is_told_once_and_reads_no_more(tmp_path: Path, loop_factory: LoopFactory) -> None:
    failures: list[Exception] = []

    async def run() -> None:
        socket = open_socket(tmp_path)
        failed = asyncio.Event()

        def on_frames(frames: list[bytes]) -> None:
            raise ValueError("no good")

        def on_failure(exc: Exception) -> None:
            failures.append(exc)
            failed.set()

        socket.start(on_frames, on_failure)
        with zmq.Context() as context, context.socket(zmq.PUSH) as engine:
            engine.linger = 0
            engine.connect(f"ipc://{tmp_path}/shard")
            engine.send(b"one")
            async with asyncio.timeout(10):
                await failed.wait()
            engine.send(b"two")
            await asyncio.sleep(0.05)
        socket.close()

    asyncio.run(run(), loop_factory=loop_factory)
    assert [str(exc) for exc in failures] == ["no good"]


@pytest.mark.parametrize("said", [hello("PULL")[:10], hello("PULL")[:70], hello("PULL")])
def test_a_router_that_dies_amid_its_greeting_is_replaced(
    tmp_path: Path, loop_factory: LoopFactory, said: bytes
) -> None:
    async def run() -> None:
        with raw_router(tmp_path) as listener:
            socket = open_socket(tmp_path)
            first, _ = listener.accept()
            first.sendall(said)
            # With what the shard said unread.
            first.close()
        socket.send(b"a request")
        with zmq_router(tmp_path) as router:
            assert await asyncio.to_thread(received, router, 1) == [b"a request"]
        socket.close()

    asyncio.run(run(), loop_factory=loop_factory)


def test_peers_that_leave_amid_their_greeting_leave_nothing(tmp_path: Path, loop_factory: LoopFactory) -> None:
    async def run() -> None:
        socket = open_socket(tmp_path)
        got: asyncio.Queue[list[bytes]] = asyncio.Queue()
        socket.start(got.put_nowait)
        for length in range(len(hello("PUSH"))):
            with plain.socket(plain.AF_UNIX) as peer:
                peer.connect(f"{tmp_path}/shard")
                await asyncio.sleep(0)
                peer.send(hello("PUSH")[:length])
                await asyncio.sleep(0)
        with zmq.Context() as context, context.socket(zmq.PUSH) as engine:
            engine.connect(f"ipc://{tmp_path}/shard")
            engine.send(b"hello")
            async with asyncio.timeout(10):
                assert await got.get() == [b"hello"]
            assert len(socket._pull._peers) == 1
        socket.close()

    asyncio.run(run(), loop_factory=loop_factory)


def test_a_socket_closed_behind_its_back_is_told(tmp_path: Path, loop_factory: LoopFactory) -> None:
    async def run() -> None:
        with zmq_router(tmp_path):
            socket = open_socket(tmp_path)
            socket.start(lambda frames: None)
            socket.look()
            with plain.socket(plain.AF_UNIX) as other:
                os.dup2(other.fileno(), socket._pull._listener.fileno())
            with pytest.raises(WireError, match="shard was closed behind its back"):
                socket.look()
            socket.close()

    asyncio.run(run(), loop_factory=loop_factory)


def test_an_engine_on_another_machine_is_refused(tmp_path: Path, loop_factory: LoopFactory) -> None:
    async def run() -> None:
        with pytest.raises(WireError, match="on its own machine.*'tcp://10.0.0.1:5'"):
            WorkerSocket(wire_facts("pickle", tmp_path), "tcp://10.0.0.1:5", asyncio.get_running_loop())

    asyncio.run(run(), loop_factory=loop_factory)


def open_socket(directory: Path) -> WorkerSocket:
    return WorkerSocket(wire_facts("pickle", directory), f"ipc://{directory}/shard", asyncio.get_running_loop())


@contextmanager
def raw_router(directory: Path) -> Iterator[plain.socket]:
    """Something that listens in the router's place."""
    with plain.socket(plain.AF_UNIX) as listener:
        listener.bind(f"{directory}/router")
        listener.listen()
        yield listener
    (directory / "router").unlink()


@contextmanager
def zmq_router(directory: Path) -> Iterator[zmq.Socket[bytes]]:
    with zmq.Context() as context, context.socket(zmq.PULL) as router:
        router.bind(f"ipc://{directory}/router")
        yield router


def received(router: zmq.Socket[bytes], count: int) -> list[bytes]:
    frames = []
    for _ in range(count):
        assert router.poll(10_000), f"only {len(frames)} of {count} came"
        frames.append(router.recv())
    return frames
