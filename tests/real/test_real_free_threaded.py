"""A gateway of threads in a free-threaded 3.13, without msgspec and tokenizers, on an engine of this Python."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from sglang_subgw.modes.gil import free_threaded_build
from support.attached import CommandProcess, attached, sglang_owner, simulated_owner

PYTHON = Path(os.environ.get("SUBGW_PYTHON_313T", Path(__file__).parents[2] / ".tox" / "py313t" / "bin" / "python"))

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(free_threaded_build(), reason="the engine's side is for a Python with tokenizers"),
    pytest.mark.skipif(not PYTHON.exists(), reason=f"no environment of a free-threaded 3.13 ({PYTHON})"),
]

TEXTS = ["The function", "hello  world\n\tdon't", "한글 🤝 é\u0301", "word " * 600]
GREEDY = {"temperature": 0.0, "max_new_tokens": 8, "ignore_eos": True, "stop": ["never so long a stop"]}
REQUESTS: list[tuple[str, dict[str, Any]]] = [
    ("/generate", {"text": TEXTS, "sampling_params": GREEDY}),
    *(("/generate", {"text": text, "sampling_params": GREEDY, "return_prompt_token_ids": True}) for text in TEXTS),
    (
        "/generate",
        {
            "text": TEXTS[0],
            "sampling_params": GREEDY,
            "return_logprob": True,
            "logprob_start_len": 0,
            "top_logprobs_num": 3,
            "return_text_in_logprobs": True,
        },
    ),
    ("/v1/completions", {"prompt": TEXTS[2], "max_tokens": 8, "temperature": 0, "logprobs": 2, "echo": True}),
    (
        "/v1/chat/completions",
        {
            "messages": [{"role": "user", "content": TEXTS[1]}],
            "max_tokens": 8,
            "temperature": 0,
            "logprobs": True,
            "top_logprobs": 2,
        },
    ),
]


@pytest.mark.parametrize(
    "owner",
    [
        pytest.param(lambda: simulated_owner("--engine-only"), id="simulated"),
        pytest.param(sglang_owner, id="sglang", marks=pytest.mark.sglang),
    ],
)
def test_it_answers_like_a_gateway_with_the_libraries(owner: Callable[[], CommandProcess]) -> None:
    without = "import importlib.util as u, sys; sys.exit(any(map(u.find_spec, ('msgspec', 'tokenizers', 'sglang'))))"
    assert subprocess.run([PYTHON, "-c", without], check=False).returncode == 0
    with owner() as engine, ExitStack() as gateways:
        assert f"attach {engine.pid}" in engine.banner
        ordinary = gateways.enter_context(attached(engine.pid, mode="process", shards=1))
        free = gateways.enter_context(attached(engine.pid, mode="thread", python=str(PYTHON)))
        model = get(free, "/v1/models")["data"][0]["id"]
        for path, body in REQUESTS:
            body = body | ({"model": model} if path.startswith("/v1") else {})
            answers = []
            for gateway in (ordinary, free):
                # What is in the prefix cache is computed otherwise, in the last bits.
                assert get(gateway, "/flush_cache")
                answers.append(told(post(gateway, path, body)))
            assert answers[0] == answers[1], (path, body)
        assert "GIL" not in free.log


def url(gateway: CommandProcess, path: str) -> str:
    return "http://{}:{}".format(*gateway.address) + path


def get(gateway: CommandProcess, path: str) -> Any:
    response = httpx.get(url(gateway, path), timeout=60)
    assert response.status_code == 200, response.text
    return response.json() if response.headers["content-type"] == "application/json" else response.text


def post(gateway: CommandProcess, path: str, body: dict[str, Any]) -> Any:
    response = httpx.post(url(gateway, path), json=body, timeout=60)
    assert response.status_code == 200, response.text
    return response.json()


CHANGING = {"id", "created", "e2e_latency", "cached_tokens", "response_sent_to_client_ts", "weight_version"}


def told(value: Any) -> Any:
    """The answer without what differs from one request to the next."""
    if isinstance(value, dict):
        return {key: told(item) for key, item in value.items() if key not in CHANGING and not key.endswith("_time")}
    if isinstance(value, list):
        return [told(item) for item in value]
    return round(value, 4) if isinstance(value, float) else value
