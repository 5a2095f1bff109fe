"""One test for each public report on signals, named after it: the command line under load, in every mode."""

from __future__ import annotations

import asyncio
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from sglang_subgw.config import Mode
from sglang_subgw.engine.attach.published import PublishedEngine
from sglang_subgw.simulated import SimulatedEngine
from support.attached import CommandProcess, attached
from support.client import Address, client, request_bytes
from support.faults import until
from support.stack import generate_body

_END = b"data: [DONE]\n\n\r\n0\r\n\r\n"
"""Of a stream, with its last chunks' borders."""


@pytest.fixture
def engine(runtime_dir: Path) -> Iterator[SimulatedEngine]:
    with SimulatedEngine(runtime_dir, step_seconds=0.02) as engine:
        yield engine
        assert engine.wait_idle(5)
        assert engine.violations == []


@pytest.fixture
def published(engine: SimulatedEngine) -> Iterator[PublishedEngine]:
    with PublishedEngine(engine) as published:
        yield published


class Streams(threading.Thread):
    """Many streams of one length, in a thread: `answers` when all have ended."""

    def __init__(self, engine: SimulatedEngine, address: Address, count: int, tokens: int) -> None:
        super().__init__(name="streams")
        self.answers: list[str] = []
        self._request = request_bytes("/generate", generate_body("abc", tokens, stream=True, ignore_eos=True))
        self._address, self._count = address, count
        self._begun = 0
        self.start()
        until(lambda: self._begun == count, 20, "the first event of every stream")
        assert engine.running() == count, "some have ended already"

    def run(self) -> None:
        asyncio.run(self._all())

    async def _all(self) -> None:
        self.answers = await asyncio.gather(*(self._one() for _ in range(self._count)))

    async def _one(self) -> str:
        reader, writer = await asyncio.open_connection(*self._address)
        writer.write(self._request)
        answer = b""
        while not answer.endswith(_END):
            piece = await reader.read(2**20)
            assert piece, f"the connection ended after {answer[-300:]!r}"
            self._begun += b"data: " in piece and b"data: " not in answer
            answer += piece
        writer.close()
        await writer.wait_closed()
        return answer.decode()


def refuses(address: Address) -> bool:
    try:
        socket.create_connection(address, timeout=5).close()
    except ConnectionRefusedError:
        return True
    return False


def no_dump(gateway: CommandProcess) -> bool:
    return not any(word in gateway.log for word in ("Traceback", "Fatal", "Error", "ERROR", "dumped"))


def interrupt(gateway: CommandProcess) -> None:
    """Ctrl-C, as a terminal sends it: to every process of the group."""
    for child in psutil.Process(gateway.pid).children(recursive=True):
        child.send_signal(signal.SIGINT)
    gateway.send(signal.SIGINT)


@pytest.mark.timeout(120)
def test_1838_1172_27405_137_sigterm_lets_200_streams_finish_refuses_others_and_exits_with_0(
    mode: Mode, engine: SimulatedEngine, published: PublishedEngine
):
    with attached(published.name, mode=mode) as gateway:
        address = gateway.address
        streams = Streams(engine, address, 200, tokens=150)
        gateway.send(signal.SIGTERM)
        until(lambda: refuses(address), 5, "a refusal of new connections")
        assert streams.is_alive(), "the streams had ended before anything was refused"
        streams.join()
        assert len(streams.answers) == 200
        for answer in streams.answers:
            assert '"finish_reason":{"type":"length","length":150}' in answer.split("\n\n")[-3]
        assert gateway.wait() == 0, gateway.log
        assert no_dump(gateway), gateway.log
        assert "SIGTERM: finishing what runs, for up to 60 s." in gateway.log


def test_137_a_stream_that_does_not_fit_into_the_drain_hears_of_the_shutdown(
    mode: Mode, engine: SimulatedEngine, published: PublishedEngine
):
    with attached(published.name, "--drain-timeout", "1", mode=mode) as gateway:
        streams = Streams(engine, gateway.address, 20, tokens=4000)
        gateway.send(signal.SIGTERM)
        streams.join()
        for answer in streams.answers:
            last = answer.split("\n\n")[-3]
            assert "The server is stopping, and this request did not end within the 1 s" in last
            assert "503" in last
        assert gateway.wait() == 0, gateway.log
        assert "Traceback" not in gateway.log


def test_2289_1872_113130_137173_ctrl_c_once_drains_and_exits_with_0(
    mode: Mode, engine: SimulatedEngine, published: PublishedEngine
):
    with attached(published.name, mode=mode) as gateway:
        streams = Streams(engine, gateway.address, 20, tokens=100)
        interrupt(gateway)
        sent = time.monotonic()
        until(lambda: "SIGINT: finishing what runs" in gateway.log, 5, "the log line")
        print(f"heard after {time.monotonic() - sent:.3f} s")
        streams.join()
        for answer in streams.answers:
            assert '"finish_reason":{"type":"length","length":100}' in answer.split("\n\n")[-3]
        ended = time.monotonic()
        assert gateway.wait() == 0, gateway.log
        assert time.monotonic() - ended < 5
        assert no_dump(gateway), gateway.log


def test_2289_1872_113130_137173_ctrl_c_twice_ends_at_once_with_error_events(
    mode: Mode, engine: SimulatedEngine, published: PublishedEngine
):
    with attached(published.name, mode=mode) as gateway:
        streams = Streams(engine, gateway.address, 20, tokens=4000)
        interrupt(gateway)
        until(lambda: "SIGINT: finishing what runs" in gateway.log, 5, "the log line")
        interrupt(gateway)
        sent = time.monotonic()
        streams.join()
        for answer in streams.answers:
            last = answer.split("\n\n")[-3]
            assert "The server is stopping" in last
            assert "503" in last
        assert gateway.wait() == 0, gateway.log
        assert time.monotonic() - sent < 5
        assert "SIGINT again: ending what still runs." in gateway.log
        assert "Traceback" not in gateway.log


# Restarts.


@pytest.mark.timeout(120)
def test_sigusr1_starts_the_shards_again_one_by_one_under_load_with_no_failed_request(
    mode: Mode, engine: SimulatedEngine, published: PublishedEngine
):
    with attached(published.name, mode=mode) as gateway:
        address = gateway.address
        streams = Streams(engine, address, 4, tokens=100)
        load = Load(address)
        until(lambda: load.served > 10, what="load")
        gateway.send(signal.SIGUSR1)

        def generations() -> list[tuple[int, str]]:
            with client(address) as one:
                shards = one.get("/server_info").json()["sglang_subgw"]["shards"]
            return [(shard["generation"], shard["state"]) for shard in shards]

        until(lambda: generations() == [(2, "ready")] * 2, 60, "the second life of each shard")
        served = load.served
        until(lambda: load.served > served + 10, what="load after it")
        load.stop()
        assert load.failures == []
        streams.join()
        for answer in streams.answers:
            assert '"finish_reason":{"type":"length","length":100}' in answer.split("\n\n")[-3]
        gateway.send(signal.SIGTERM)
        assert gateway.wait() == 0, gateway.log
        assert no_dump(gateway), gateway.log


class Load:
    """Kept-alive clients that each send one request after the other."""

    def __init__(self, address: Address) -> None:
        self.served = 0
        self.failures: list[str] = []
        self._address = address
        self._end = threading.Event()
        self._threads = [threading.Thread(target=self._run) for _ in range(4)]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._end.set()
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        with client(self._address) as one:
            while not self._end.is_set():
                try:
                    answer = one.post("/generate", json=generate_body("abc", 2))
                except httpx.HTTPError as exc:
                    self.failures.append(repr(exc))
                    continue
                if answer.status_code != 200:
                    self.failures.append(f"{answer.status_code} {answer.text}")
                self.served += 1
