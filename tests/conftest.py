"""Fixtures for every test: a private directory, the simulated engine, whole gateways, and nothing left behind."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from sglang_subgw.config import SHARD_MODES, Mode
from sglang_subgw.simulated import SimulatedEngine
from support.leftovers import Snapshot, left_since
from support.modes import left_to_others, skip_unavailable
from support.stack import Stack, generate_body, running_stack

# Speed is the benchmarks' business, and other tests and machines are busy beside this one.
settings.register_profile("suite", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("suite")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Modes that this Python doesn't have are skipped, those that another environment tests left out."""
    skip_unavailable(items)
    if others := [item for item in items if left_to_others(item)]:
        config.hook.pytest_deselected(items=others)
        theirs = set(others)
        items[:] = [item for item in items if item not in theirs]


@pytest.fixture(scope="session", autouse=True)
def kept_by_the_process() -> None:
    """libuv's pipe for signals is made with a process's first loop and kept: it is there before anyone counts."""
    try:
        import uvloop
    except ImportError:
        return
    uvloop.new_event_loop().close()


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """Fails a test that leaves a process, thread, descriptor, segment or interpreter behind."""
    before = Snapshot.take()
    yield
    # A gateway that a module's tests share starts them when a test first needs them; they end with it.
    left = left_since(before, but_for_threads="tokenize_")
    assert not left, f"left behind: {left}"


@pytest.fixture(scope="module", autouse=True)
def nothing_left_behind_by_module() -> Iterator[None]:
    """The same for what a module's tests share."""
    before = Snapshot.take()
    yield
    left = left_since(before)
    assert not left, f"left behind: {left}"


def _private_dir() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="sgt-"))
    try:
        yield path
        left = [str(file.relative_to(path)) for file in path.rglob("*") if not file.is_dir()]
        assert not left, f"files left in the runtime directory: {left}"
    finally:
        shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def short_dir() -> Iterator[Path]:
    """For sockets, whose paths have an end: `tmp_path` can be too long where tests run side by side."""
    with tempfile.TemporaryDirectory(prefix="sgt-") as path:
        yield Path(path)


@pytest.fixture
def runtime_dir() -> Iterator[Path]:
    """A short path, mode 0700, that must be empty of files at the end."""
    yield from _private_dir()


@pytest.fixture(scope="module")
def module_runtime_dir() -> Iterator[Path]:
    """The same for a module."""
    yield from _private_dir()


@pytest.fixture(params=SHARD_MODES, ids=str)
def mode(request: pytest.FixtureRequest) -> Mode:
    """Every mode, one after the other."""
    return request.param


@pytest.fixture(params=["pickle", "msgpack"])
def codec(request: pytest.FixtureRequest) -> str:
    """Both wire formats."""
    if request.param == "msgpack":
        pytest.importorskip("msgspec")
    return request.param


@pytest.fixture
def needs_tokenizers() -> None:
    """Skips where text can't be tokenized."""
    pytest.importorskip("tokenizers")


@pytest.fixture(params=[True, False], ids=["grouped", "single"])
def grouped(request: pytest.FixtureRequest) -> bool:
    """One message per step and worker, or one per request."""
    return request.param


@pytest.fixture
def make_engine(runtime_dir: Path) -> Iterator[Callable[..., SimulatedEngine]]:
    """Starts a simulated engine with any settings; it is stopped, and checked, at the end."""
    with ExitStack() as ends:

        def make(**settings: Any) -> SimulatedEngine:
            return ends.enter_context(SimulatedEngine(runtime_dir, **settings))

        yield make


@pytest.fixture
def engine(make_engine: Callable[..., SimulatedEngine], codec: str, grouped: bool) -> SimulatedEngine:
    """A simulated engine, in each codec and grouping."""
    return make_engine(codec=codec, grouped=grouped)


@pytest.fixture
def make_stack(runtime_dir: Path, mode: Mode) -> Iterator[Callable[..., Stack]]:
    """Starts a gateway over a simulated engine in each mode, with any settings of either."""
    with ExitStack() as ends:

        def make(**settings: Any) -> Stack:
            return ends.enter_context(running_stack(runtime_dir, mode, **settings))

        yield make


_SHARED = [(mode, codec) for mode in SHARD_MODES for codec in ("pickle", "msgpack")]


@pytest.fixture(scope="module", params=_SHARED, ids=[f"{mode}-{codec}" for mode, codec in _SHARED])
def shared_stack(request: pytest.FixtureRequest, module_runtime_dir: Path) -> Iterator[Stack]:
    """One gateway for all of a module's tests, in each mode and codec; for tests that change nothing in it."""
    mode, codec = request.param
    if codec == "msgpack":
        pytest.importorskip("msgspec")
    with running_stack(module_runtime_dir, mode, codec=codec) as stack:
        # The engine connects to a worker when it first answers it: no test's doing, and no test's leftover.
        with stack.client_per_shard() as clients:
            for client in clients:
                client.post("/generate", json=generate_body("warm", 2)).raise_for_status()
        yield stack


@pytest.fixture
def served(shared_stack: Stack) -> Iterator[Stack]:
    """The shared gateway; after each test it is idle, and no worker broke a rule."""
    yield shared_stack
    shared_stack.wait_idle()
    shared_stack.check()
