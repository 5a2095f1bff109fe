"""fastapi_before.py and fastapi_after.py: the same server around an Engine and in shards."""

from __future__ import annotations

import difflib
import importlib
import itertools
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import httpx
import pytest

from sglang_subgw.engine.attach.published import PublishedEngine
from sglang_subgw.shard.user_code import name_of
from sglang_subgw.simulated import SimulatedEngine
from support.client import client
from support.faults import until
from support.stack import Stack, echoed

pytest.importorskip("fastapi")

_RUN: Final = """
import os, runpy, sys, types
del sys.argv[0]
sys.path.insert(0, os.path.dirname(sys.argv[0]))
import sglang_subgw
{engine}
runpy.run_path(sys.argv[0], run_name="__main__")
"""
_BEFORE: Final = _RUN.format(
    engine="""
class Engine:
    def __init__(self, model_path):
        self.owner = model_path

    async def async_generate(self, prompt, sampling_params, stream=False):
        if stream:
            return self.parts(prompt, sampling_params)
        async with sglang_subgw.attach(self.owner) as engine:
            return await engine.async_generate(prompt, sampling_params)

    async def parts(self, prompt, sampling_params):
        async with sglang_subgw.attach(self.owner) as engine:
            async for out in await engine.async_generate(prompt, sampling_params, stream=True):
                yield out

sys.modules["sglang"] = types.SimpleNamespace(Engine=Engine)
"""
)
"""In the place of SGLang's Engine one that leads to the test's; its model is this one's name."""
_AFTER: Final = _RUN.format(
    engine="""
import sglang_subgw.engine.launch.launch as launching
from sglang_subgw.simulated import SimulatedEngine
launching.launch = lambda arguments, *, runtime_dir, **_: SimulatedEngine(runtime_dir)
"""
)


def test_three_lines_stand_where_five_stood(examples: Path):
    before, after = (
        (examples / f"fastapi_{name}.py").read_text().split('"""', 2)[2].splitlines() for name in ("before", "after")
    )
    changed = [line for line in difflib.ndiff(before, after) if line[0] in "+-"]
    assert len([line for line in changed if line[0] == "+"]) == 3
    assert len([line for line in changed if line[0] == "-"]) == 5


def answers(one: httpx.Client) -> list[object]:
    """What a client gets for a few questions."""
    question = {"text": "abcdef", "max_new_tokens": 9}
    return [
        one.post("/ask", json=question).json(),
        one.post("/ask/stream", json=question).text.splitlines()[-1],
        one.post("/ask", json={**question, "max_new_tokens": 0}).status_code,
    ]


EXPECTED: Final = [{"answer": echoed("abcdef", 9)}, echoed("abcdef", 9), 422]


def test_the_server_in_shards(make_stack: Callable[..., Stack], mode: str, examples: Path):
    app = name_of(importlib.import_module("fastapi_after").app)
    assert app == "fastapi_after:app"
    stack = make_stack(config={"app": app})
    for _ in range(stack.shard_count):
        with stack.client() as one:
            assert answers(one) == EXPECTED
            lines = one.post("/ask/stream", json={"text": "abcdef", "max_new_tokens": 9}).text.splitlines()
            assert all(later.startswith(earlier) for earlier, later in itertools.pairwise(lines))
    assert all(shard["requests"] for shard in stack.gateway.shards)
    stack.wait_idle()
    stack.check()


@contextmanager
def script(program: str, path: Path, model: str) -> Iterator[tuple[str, int]]:
    """The example as a script, until it serves and then until SIGTERM."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = free.getsockname()
    process = subprocess.Popen([sys.executable, "-c", program, str(path), model, str(address[1])])

    def serves() -> bool:
        assert process.poll() is None, "it ended"
        with socket.socket() as sock:
            return sock.connect_ex(address) == 0

    try:
        until(serves, 30)
        yield address
    finally:
        process.terminate()
        # uvicorn ends by the signal that told it to.
        assert process.wait(20) in (0, -signal.SIGTERM)


def test_the_scripts_answer_alike(runtime_dir: Path, examples: Path):
    with (
        SimulatedEngine(runtime_dir) as engine,
        PublishedEngine(engine) as published,
        script(_BEFORE, examples / "fastapi_before.py", published.name) as before,
        script(_AFTER, examples / "fastapi_after.py", "no model") as after,
    ):
        for address in (before, after):
            with client(address) as one:
                assert answers(one) == EXPECTED
