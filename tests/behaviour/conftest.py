"""Gateways whose shards run an application that calls the engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from sglang_subgw.config import SHARD_MODES
from support.calling import SETTINGS, Caller, ask
from support.stack import Stack, generate_body, running_stack

_SHARED = [(mode, codec) for mode in SHARD_MODES for codec in ("pickle", "msgpack")]


@pytest.fixture(scope="module", params=_SHARED, ids=[f"{mode}-{codec}" for mode, codec in _SHARED])
def calling_stack(
    request: pytest.FixtureRequest, module_runtime_dir: Path
) -> Iterator[tuple[Stack, list[httpx.Client]]]:
    """A gateway for every test, in each mode and codec, with a client on each shard."""
    mode, codec = request.param
    if codec == "msgpack":
        pytest.importorskip("msgspec")
    with (
        running_stack(module_runtime_dir, mode, codec=codec, **SETTINGS) as stack,
        stack.client_per_shard() as clients,
    ):
        for client in clients:
            client.post("/generate", json=generate_body("warm", 2)).raise_for_status()
            # The threads of default executors stay, a shard's and the coordinator's.
            ask(client, "collective_rpc", {"method": "warm_up"})
            ask(client, "flush_cache", {})
        yield stack, clients


@pytest.fixture(params=["async_", ""], ids=["coroutine", "blocking"])
def call(request: pytest.FixtureRequest, calling_stack: tuple[Stack, list[httpx.Client]]) -> Iterator[Caller]:
    """Calls in both forms; each test leaves the engine as it was."""
    yield from _calling(*calling_stack, request.param)


@pytest.fixture
def call_async(calling_stack: tuple[Stack, list[httpx.Client]]) -> Iterator[Caller]:
    """Calls in the coroutine form only."""
    yield from _calling(*calling_stack, "async_")


def _calling(stack: Stack, clients: list[httpx.Client], form: str) -> Iterator[Caller]:
    yield Caller(stack, clients, form)
    stack.wait_idle()
    stack.check()


@pytest.fixture
def make_caller(make_stack: Callable[..., Stack]) -> Iterator[Callable[..., Caller]]:
    """Callers in gateways of their own, in each mode."""
    opened = []

    def make(**settings: Any) -> Caller:
        stack = make_stack(**{**SETTINGS, **settings})
        context = stack.client_per_shard()
        clients = context.__enter__()
        opened.append(context)
        return Caller(stack, clients, "async_")

    yield make
    for context in opened:
        context.__exit__(None, None, None)
