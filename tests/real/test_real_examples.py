"""The FastAPI examples around a real engine: the server in shards answers as the one around sglang.Engine does."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from support.real.servers import Connection, free_port, running

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(600)]

EXAMPLES: Final = Path(__file__).parents[2] / "examples"
PROMPTS: Final = ("The capital of France is", "Return the", "abc")
_BEFORE: Final = """
import functools, runpy, sys
import sglang
del sys.argv[0]
sglang.Engine = functools.partial(sglang.Engine, device="cpu", attention_backend="torch_native", max_total_tokens=20000)
runpy.run_path(sys.argv[0], run_name="__main__")
"""
"""sglang.Engine, told that there is only a CPU."""


def answers(command: list[str], log: Path, model: Path, clients: int) -> list[list[str]]:
    """What each of some clients gets."""
    port = free_port()
    with running([*command, str(model), str(port)], port, log, health="/openapi.json"):
        found = []
        for _ in range(clients):
            with Connection(port) as connection:
                asked = [connection.post("/ask", {"text": text, "max_new_tokens": 24}) for text in PROMPTS]
                asked += [connection.post("/ask/stream", {"text": text, "max_new_tokens": 24}) for text in PROMPTS]
            assert {status for status, _ in asked} == {200}
            found.append([body["answer"] if isinstance(body, dict) else body.splitlines()[-1] for _, body in asked])
        return found


def test_the_server_in_shards_answers_as_the_one_around_an_engine(tmp_path: Path):
    from sglang_subgw.engine.demo.model import ensure_demo_model

    model = ensure_demo_model()
    (before,) = answers(["-c", _BEFORE, str(EXAMPLES / "fastapi_before.py")], tmp_path / "before", model, 1)
    after = answers([str(EXAMPLES / "fastapi_after.py")], tmp_path / "after", model, 4)
    assert after == [before] * 4
