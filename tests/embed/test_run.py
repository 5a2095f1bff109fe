"""`sglang_subgw.run`: a server in one call."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import sglang_subgw
from sglang_subgw.config import Mode
from sglang_subgw.errors import EngineDied, ShardStartError
from sglang_subgw.simulated import SimulatedEngine, SimulatedEngineProcess


@pytest.fixture
def notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where support.apps.coroutines tells what happens."""
    monkeypatch.setenv("SUBGW_TEST_NOTES", str(tmp_path))
    return tmp_path / "0-1"


@contextmanager
def once(condition: Callable[[], bool], act: Callable[[], None]) -> Iterator[None]:
    """Meanwhile, in a thread: wait for something, then do something."""
    ended = threading.Event()

    def run() -> None:
        while not ended.wait(0.01):
            if condition():
                act()
                return

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def test_it_serves_until_a_signal(runtime_dir: Path, mode: Mode, notes: Path):
    before = signal.getsignal(signal.SIGTERM)
    with SimulatedEngine(runtime_dir) as engine, once(notes.exists, lambda: os.kill(os.getpid(), signal.SIGTERM)):
        sglang_subgw.run(engine, serve="support.apps.coroutines:serve", shards=1, mode=mode, log_level="warning")
    assert notes.read_text().split() == ["abc", "drained"]
    assert signal.getsignal(signal.SIGTERM) == before


def test_what_ended_it_is_raised(runtime_dir: Path, notes: Path):
    with (
        SimulatedEngineProcess(runtime_dir) as engine,
        once(notes.exists, engine.kill),
        pytest.raises(EngineDied, match="simulated engine"),
    ):
        sglang_subgw.run(engine, serve="support.apps.coroutines:serve", shards=1, mode="process", log_level="warning")


def test_what_keeps_it_from_starting_is_raised(runtime_dir: Path):
    with SimulatedEngine(runtime_dir) as engine, pytest.raises(ShardStartError, match="no place to listen"):
        sglang_subgw.run(engine, serve="support.apps.coroutines:raises", shards=1, mode="process", log_level="warning")
