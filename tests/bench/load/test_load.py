"""The load generator against servers whose every byte is known."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from sglang_subgw.bench.load.client import Tally
from sglang_subgw.bench.load.histogram import Histogram
from sglang_subgw.bench.load.workload import Group, Workload
from sglang_subgw.bench.measure import measure
from sglang_subgw.bench.system.child import Child
from sglang_subgw.bench.targets.base import Floor
from sglang_subgw.engine.scripted.pace import Pace
from sglang_subgw.errors import BenchError, ConfigError

HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


@contextmanager
def serving(answers: Callable[[socket.socket], None]) -> Iterator[tuple[str, int]]:
    """One connection after the other is given to `answers`."""
    ended = threading.Event()

    def serve() -> None:
        while not ended.is_set():
            try:
                sock, _ = listener.accept()
            except OSError:
                return
            with sock:
                try:
                    answers(sock)
                except OSError:
                    continue

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield listener.getsockname()
        finally:
            ended.set()
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


def _settings(address: tuple[str, int], **group: Any) -> dict[str, Any]:
    workload = Workload(groups=(Group(**{"connections": 1, **group}),))
    return workload.to_load(address, "model", lambda group: "Hello")


def _answers(load: Child, count: int) -> dict[str, Any]:
    """What has been seen once there are so many answers, or errors."""
    while True:
        seen: dict[str, Any] = load.ask(do="end")["groups"]["streams"]
        if seen["requests"] + seen["errors"] >= count:
            return seen


@pytest.mark.parametrize("cut", [1, 7, 1000])
def test_events_are_counted_however_they_are_cut_into_reads(cut: int, make_child: Callable[..., Child]) -> None:
    events = b"".join(b"%x\r\ndata: {%d}\n\n\r\n" % (10, i) for i in range(5)) + b"0\r\n\r\n"
    served = threading.Semaphore(1)

    def answer(sock: socket.socket) -> None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.recv(65536)
        if not served.acquire(blocking=False):
            return
        sock.sendall(HEAD)
        for i in range(0, len(events), cut):
            sock.sendall(events[i : i + cut])
        sock.recv(65536)

    with serving(answer) as address:
        load = make_child("load.process", **_settings(address, pause_seconds=60))
        assert load.hear() == {"running": True}
        seen = _answers(load, 1)
        load.close()
    assert (seen["events"], seen["requests"], seen["errors"]) == (5, 1, 0)


def test_an_answer_of_known_length_is_a_request_without_events(make_child: Callable[..., Child]) -> None:
    requests: list[bytes] = []

    def answer(sock: socket.socket) -> None:
        while data := sock.recv(65536):
            requests.append(data)
            sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nab\n\n")

    with serving(answer) as address:
        load = make_child("load.process", **_settings(address, stream=False, format="generate", max_tokens=3))
        load.hear()
        seen = _answers(load, 3)
        load.close()
    assert seen["events"] == 0
    assert seen["errors"] == 0
    head, _, body = requests[0].partition(b"\r\n\r\n")
    assert head.startswith(b"POST /generate HTTP/1.1\r\n")
    assert json.loads(body) == {
        "text": "Hello",
        "sampling_params": {"max_new_tokens": 3, "temperature": 0, "ignore_eos": True},
        "stream": False,
    }


def test_an_error_is_counted_and_quoted(make_child: Callable[..., Child]) -> None:
    def answer(sock: socket.socket) -> None:
        sock.recv(65536)
        sock.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 5\r\n\r\nwrong")

    with serving(answer) as address:
        load = make_child("load.process", **_settings(address))
        load.hear()
        seen = _answers(load, 1)
        load.close()
    assert seen["requests"] == 0
    assert seen["said"][0] == "HTTP/1.1 400 Bad Request: wrong"


def test_every_request_of_a_reconnecting_client_has_its_own_connection(make_child: Callable[..., Child]) -> None:
    connections: list[None] = []

    def answer(sock: socket.socket) -> None:
        connections.append(None)
        while sock.recv(65536):
            sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx")

    with serving(answer) as address:
        load = make_child("load.process", **_settings(address, stream=False, reconnect=True))
        load.hear()
        seen = _answers(load, 4)
        load.close()
    assert len(connections) >= seen["requests"]


@pytest.mark.parametrize("writer", ["send", "uvloop"])
def test_every_event_of_a_bare_writer_arrives(writer: str, directory: Path, pace: Pace) -> None:
    if writer == "uvloop":
        pytest.importorskip("uvloop")
    event = "a\r\ndata: {1}\n\n\r\n"
    floor = Floor(f"floor-{writer}", writer, event, pace=str(directory / "pace"), log=directory / "log")
    workload = Workload(groups=(Group(connections=3),), warm_seconds=0.05, seconds=0.3)
    run = measure(floor, workload, lambda group: "Hello", log_dir=directory, generators=2)
    seen = run.groups["streams"]
    assert seen.errors == 0
    assert seen.events > 0
    assert seen.bytes == seen.events * len(event)
    assert run.cpu["shards"] > 0
    assert run.memory["shards"].uss > 0


def test_a_slow_client_reads_no_faster_than_it_is_told(directory: Path, pace: Pace) -> None:
    event = f"c8\r\ndata: {'x' * 192}\n\n\r\n"
    floor = Floor("floor-send", "send", event, pace=str(directory / "pace"), log=directory / "log")
    slow = Group(name="slow", connections=2, bytes_per_second=100, background=True)
    workload = Workload(groups=(Group(connections=1), slow), warm_seconds=0.0, seconds=0.5)
    run = measure(floor, workload, lambda group: "Hello", log_dir=directory)
    assert run.groups["slow"].errors == 0
    assert 0 < run.groups["slow"].bytes < 2 * 200
    assert run.groups["streams"].bytes > 10 * run.groups["slow"].bytes


def test_a_server_that_answers_nothing_is_an_error(directory: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        address = closed.getsockname()

    class Nobody(Floor):
        def open(self) -> None:
            super().open()
            self.address = address

    nobody = Nobody("nobody", "send", "", pace=str(directory / "pace"), log=directory / "log")
    with pytest.raises(BenchError, match="nobody answered no request of streams: no connection"):
        workload = Workload(groups=(Group(connections=1),), warm_seconds=0.0, seconds=0.1)
        measure(nobody, workload, lambda group: "Hello", log_dir=directory)


def test_a_load_is_split_without_losing_a_connection() -> None:
    workload = Workload(groups=(Group(connections=5), Group(name="probe", connections=1)))
    parts = workload.split(2)
    assert [[group.connections for group in part.groups] for part in parts] == [[3, 1], [2]]


def test_events_of_several_tokens_are_asked_for_and_come_more_seldom() -> None:
    group = Group(format="generate", tokens_per_event=10)
    assert b'"stream_interval": 10' in group.request("x", "model", "host")
    settings = Workload(groups=(group,), step_seconds=0.1).to_load(("::1", 1), "model", lambda group: "x")
    tally = Tally(settings["groups"][0]["event_seconds"])
    tally.gaps.extend([0.5, 1.25, 1.25])
    late = Histogram.from_json(tally.to_json()["late"])
    assert late.quantile(0.3) == pytest.approx(0, abs=1e-6)
    assert late.quantile(0.99) == pytest.approx(0.25, rel=0.02)


@pytest.mark.parametrize(
    "wrong", [{"connections": 0}, {"format": "embedding"}, {"max_tokens": 0}, {"tokens_per_event": 2}]
)
def test_what_cannot_be_sent_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        Group(**wrong)


def test_a_process_that_fails_is_quoted(make_child: Callable[..., Child]) -> None:
    child = make_child("targets.floor", writer="nothing", pace="/nonexistent/pace", event="")
    with pytest.raises(BenchError, match=r"floor' ended with exit code 1\.[\s\S]*/nonexistent/pace"):
        child.hear()
