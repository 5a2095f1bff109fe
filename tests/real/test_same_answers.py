"""Every shard, in every mode, answers as SGLang's own server does: field by field, ids and times aside."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sglang_subgw.config import Mode
from support.real.request_set import REQUESTS, Asked
from support.real.servers import Connection, free_port, running

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(900)]

SHARDS = 4
_ENGINE = [
    "--device",
    "cpu",
    "--attention-backend",
    "torch_native",
    "--max-total-tokens",
    "20000",
    "--random-seed",
    "1",
]
_OWN_FIELDS = frozenset({"id", "created", "e2e_latency", "response_sent_to_client_ts"})
"""What differs from run to run: ids and times."""
_CLOCK = re.compile(r"\[\d\d:\d\d:\d\d\]")
"""The time in a message of the grammar backend."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from sglang_subgw.engine.demo.model import ensure_demo_model

    return ensure_demo_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def stock(model: Path, tmp_path_factory: pytest.TempPathFactory) -> list[tuple[int, Any]]:
    """The answers of SGLang's own server."""
    port = free_port()
    command = ["-m", "sglang.launch_server", "--model-path", str(model), "--port", str(port), *_ENGINE]
    with running(command, port, tmp_path_factory.mktemp("stock") / "log"), Connection(port) as connection:
        return ask_all(connection)


@pytest.fixture(scope="module", params=[Mode.SUBINTERP, Mode.PROCESS])
def shards(
    request: pytest.FixtureRequest, model: Path, stock: Any, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[list[tuple[int, Any]]]]:
    """The answers of each shard of a gateway in one mode."""
    port = free_port()
    command = ["-m", "sglang_subgw", "--model-path", str(model), "--port", str(port), *_ENGINE]
    command += ["--shards", str(SHARDS), "--mode", request.param]
    with running(command, port, tmp_path_factory.mktemp(request.param) / "log"):
        connections = {}
        # An idle connection keeps its shard, so each further one goes to a shard that has fewer.
        while len(connections) < SHARDS:
            connection = Connection(port)
            connection.get("/health")
            assert connection.shard not in connections
            connections[connection.shard] = connection
        answers = []
        for index in range(SHARDS):
            with connections[index] as connection:
                answers.append(ask_all(connection))
                assert connection.shard == index
        yield answers


def ask_all(connection: Connection) -> list[tuple[int, Any]]:
    """All answers, from a prefix cache that is empty at the start."""
    assert connection.post("/flush_cache", {})[0] == 200
    model = connection.get("/v1/models")[1]["data"][0]["id"]
    return [ask(connection, asked, model) for asked in REQUESTS]


def ask(connection: Connection, asked: Asked, model: str) -> tuple[int, Any]:
    """One answer without ids and times."""
    body = copy.deepcopy(asked.body)
    if "model" in body:
        body["model"] = model
    status, answer = connection.post(asked.path, body)
    answer = without_own_fields(answer)
    return status, canonical_stream(answer) if isinstance(answer, list) and "stream" in body else answer


def without_own_fields(value: Any) -> Any:
    """The value without ids and times, at any depth."""
    if isinstance(value, dict):
        return {key: without_own_fields(item) for key, item in value.items() if key not in _OWN_FIELDS}
    if isinstance(value, list):
        return [without_own_fields(item) for item in value]
    return _CLOCK.sub("[time]", value) if isinstance(value, str) else value


def canonical_stream(events: list[Any]) -> list[Any]:
    """A stream as it is whoever was quicker: how many tokens went into one event is the load's doing, not the server's.

    OpenAI's: choice by choice, texts that follow each other joined, with the end's where the end has a text of its own
    (/v1/completions). /generate's: the last event, and whether each earlier one was its beginning.
    """
    if "meta_info" in events[0]:
        last = events[-2]
        beginnings = [last["text"].startswith(event["text"]) for event in events[:-1]]
        return [*events[-2:], all(beginnings)]
    by_choice = sorted(events, key=_index)
    joined: list[Any] = []
    for event in by_choice:
        if joined and _is_text(event) and _is_text(joined[-1]) and _index(event) == _index(joined[-1]):
            joined[-1] = _join(joined[-1], event)
        else:
            joined.append(event)
    return joined


def _index(event: Any) -> int:
    choices = event["choices"] if isinstance(event, dict) else []
    return choices[0]["index"] if choices else len(REQUESTS)


def _is_text(event: Any) -> bool:
    if not isinstance(event, dict) or not event["choices"]:
        return False
    choice = event["choices"][0]
    if "delta" in choice:
        return choice["finish_reason"] is None and choice["delta"].get("role") is None
    return True


def _join(first: Any, second: Any) -> Any:
    joined = copy.deepcopy(first)
    ours, theirs = joined["choices"][0], second["choices"][0]
    if "delta" in ours:
        ours["delta"]["content"] += theirs["delta"]["content"]
    else:
        ours["text"] += theirs["text"]
        ours |= {key: theirs[key] for key in ("finish_reason", "matched_stop")}
    for key, values in (ours["logprobs"] or {}).items():
        if values is not None:
            values.extend(theirs["logprobs"][key])
    return joined


def test_there_are_enough_requests() -> None:
    assert len(REQUESTS) >= 40
    assert len({asked.name for asked in REQUESTS}) == len(REQUESTS)


def test_the_stock_server_answers_them(stock: list[tuple[int, Any]]) -> None:
    refused = [asked.name for asked, (status, _) in zip(REQUESTS, stock, strict=True) if status != 200]
    assert refused == ["generate grammar that is none"]


@pytest.mark.parametrize("number", range(len(REQUESTS)), ids=[asked.name for asked in REQUESTS])
def test_every_shard_answers_as_sglang(shards: list[list[Any]], stock: list[Any], number: int) -> None:
    expected = pretty(stock[number])
    for index, answers in enumerate(shards):
        assert pretty(answers[number]) == expected, f"shard {index}"


def pretty(answer: tuple[int, Any]) -> list[str]:
    """The answer as lines, so that a difference shows where it is."""
    return json.dumps(answer, indent=1, sort_keys=True, ensure_ascii=False).splitlines()
