"""What the guide shows runs as it stands there, over the simulated engine."""

from __future__ import annotations

import asyncio
import importlib
import re
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import sglang_subgw
from sglang_subgw.engine.attach.published import PublishedEngine
from support.api_tables import DOCS
from support.stack import echoed

TOKENS = 32
"""As many as the guide asks for."""


@pytest.fixture
def shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], str]:
    """Makes a module of the one block of a page's that has this text; its name."""
    monkeypatch.syspath_prepend(tmp_path)

    def module(page: str, text: str) -> str:
        blocks = re.findall(r"^```python\n(.*?)^```$", (DOCS / page).read_text(), re.MULTILINE | re.DOTALL)
        (code,) = [block for block in blocks if text in block]
        name = f"shown_{uuid.uuid4().hex}"
        (tmp_path / f"{name}.py").write_text(code)
        return name

    return module


@pytest.mark.parametrize("text", ["async def ask(text: str, request", "def ask(text: str, request: Request) -> str"])
def test_fastapi_applications(make_stack: Any, shown: Callable[[str, str], str], text: str) -> None:
    pytest.importorskip("fastapi")
    stack = make_stack(config={"app": f"{shown('embedding.md', text)}:app"})
    answer = stack.post("/ask?text=abcdef", None).json()
    assert (answer["answer"] if isinstance(answer, dict) else answer) == echoed("abcdef", TOKENS)
    stack.wait_idle()
    stack.check()


def test_the_gateways_routes_beside_ones_own(make_stack: Any, shown: Callable[[str, str], str]) -> None:
    stack = make_stack(config={"app": f"{shown('embedding.md', 'create_app(engine, info, config)')}:app"})
    with stack.client() as client:
        assert client.post("/count", content="abc").json() == {"tokens": 3}
        assert client.get("/health").status_code == 200
    stack.check()


def test_a_program_attaches(
    make_engine: Any, shown: Callable[[str, str], str], capsys: pytest.CaptureFixture[str]
) -> None:
    module = importlib.import_module(shown("embedding.md", 'asyncio.run(main("4711"))'))
    with PublishedEngine(make_engine()) as published:
        asyncio.run(module.main(published.name))
    answer = capsys.readouterr().out.rstrip("\n")
    assert answer
    assert "The capital of France is".startswith(answer), "the simulated engine repeats the prompt"


def test_pauses_and_new_weights(make_engine: Any, shown: Callable[[str, str], str]) -> None:
    pauses = importlib.import_module(shown("control-plane.md", "async def paused_work"))
    weights = importlib.import_module(shown("control-plane.md", "async def update"))

    async def run(owner: str) -> None:
        async with sglang_subgw.attach(owner) as engine:
            await pauses.paused_work(engine)
            await weights.update(engine, "/models/next", 7)
            assert (await engine.async_get_model_info())["weight_version"] == "7"

    with PublishedEngine(make_engine()) as published:
        asyncio.run(run(published.name))
