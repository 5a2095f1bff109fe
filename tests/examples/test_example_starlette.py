"""starlette_routes.py: routes of one's own beside OpenAI's."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

from support.attached import simulated_owner
from support.client import client
from support.stack import Stack, echoed

APP = "starlette_routes:app"


def test_its_own_routes_and_the_gateway_s(make_stack: Callable[..., Stack], mode: str, examples: Path):
    stack = make_stack(config={"app": APP})
    prompt = "abcdef\n\nHeadline:"
    with stack.client_per_shard() as clients:
        for index, one in enumerate(clients):
            counted = one.post("/count", content="abcdef").json()
            assert counted == {"tokens": len(stack.engine.tokenizer.encode("abcdef")), "shard": index}
            assert one.post("/headline", content="abcdef").text == echoed(prompt, 24).partition("\n")[0]
            model = one.get("/v1/models").json()["data"][0]["id"]
            answer = one.post("/v1/completions", json={"model": model, "prompt": "abcdef", "max_tokens": 5})
            assert answer.json()["choices"][0]["text"] == echoed("abcdef", 5)
    stack.wait_idle()
    stack.check()


def test_the_command_in_its_docstring(examples: Path):
    with simulated_owner("--app", APP, "--shards", "2", "--mode", "process", "--port", "0") as server:
        with client(server.address) as one:
            assert one.post("/count", content="abcdef").json()["tokens"] > 0
        server.send(signal.SIGTERM)
        assert server.wait() == 0, server.log
