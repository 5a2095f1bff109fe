"""Answers of the OpenAI routes equal those that SGLang's own serving code builds from the same engine outputs."""

from __future__ import annotations

import json
import os
import subprocess
from typing import Any

import pytest

from support.http_fakes import FakeEngine, ask, events_of, rich_script
from support.programs import IMPORTABLE, program

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(300)]

BOTH: list[dict[str, Any]] = [
    {},
    {"n": 2},
    {"logprobs": True, "top_logprobs": 2},
    {"stream_options": {"include_usage": True}},
    {"stream_options": {"include_usage": True, "continuous_usage_stats": True}, "n": 2},
    {"return_hidden_states": True},
    {"return_hidden_states": "last", "return_cached_tokens_details": True, "return_spec_tokens_details": True},
    {"return_input_ids_in_sglext": True, "return_output_ids_in_sglext": True},
]
WHOLE_ONLY: list[dict[str, Any]] = [
    {"return_meta_info": True, "return_token_ids": True},
    {"return_prompt_token_ids": True},
]
SHARED = [body for body in BOTH if "return_input_ids_in_sglext" not in body]


def cases() -> list[tuple[str, dict[str, Any]]]:
    """Every request that is compared."""
    found: list[tuple[str, dict[str, Any]]] = []
    chat = {"model": "demo", "messages": [{"role": "user", "content": "x"}], "input_ids": [1, 2, 3]}
    for stream in (False, True):
        found += [("/v1/chat/completions", chat | {"stream": stream} | more) for more in BOTH]
        for prompt in ("Hi", [1, 2, 3]):
            completion = {"model": "demo", "prompt": prompt, "stream": stream}
            for more in [*SHARED, {"echo": True}, {"echo": True, "logprobs": 2}, {"return_token_ids": True}]:
                # The same field with another type: a number of alternatives.
                more = {name: 2 if name == "logprobs" else value for name, value in more.items()}
                more.pop("top_logprobs", None)
                found.append(("/v1/completions", completion | more))
    found += [("/v1/chat/completions", chat | more) for more in WHOLE_ONLY]
    return found


@pytest.fixture(scope="module")
def stock_answers(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    out = tmp_path_factory.mktemp("stock") / "answers.json"
    done = subprocess.run(
        program("stock.openai_replay", str(out)),
        input=json.dumps(cases()),
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **IMPORTABLE},
    )
    assert done.returncode == 0, done.stderr
    answers: list[Any] = json.loads(out.read_text())
    return answers


def timeless(value: Any) -> Any:
    """The value without what two runs can't share; the order of keys is kept."""
    if isinstance(value, list):
        return [timeless(item) for item in value]
    if isinstance(value, dict):
        volatile = ("created", "e2e_latency", "id", "response_sent_to_client_ts")
        return {key: timeless(item) for key, item in value.items() if key not in volatile}
    return value


@pytest.mark.parametrize(("number", "path", "body"), [(i, *case) for i, case in enumerate(cases())], ids=str)
def test_equal(stock_answers: list[Any], number: int, path: str, body: dict[str, Any]) -> None:
    answer = ask(path, body, lambda: FakeEngine(script=rich_script))
    assert answer.status_code == 200, answer.text
    ours = timeless(events_of(answer) if body.get("stream") else answer.json())
    theirs = timeless(stock_answers[number])
    assert ours == theirs
    assert json.dumps(ours) == json.dumps(theirs), "same values, another order"
