"""encode, rerank and score from a shard of a real engine, in each mode: what Engine itself answers."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from typing import Any

import pytest

from support.programs import IMPORTABLE, program

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(600)]

_TIMES = ("e2e_latency", "response_sent_to_client_ts", "id")


@pytest.fixture(scope="module", params=["embedding", "classifier", "cross encoder", "generation"])
def answers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """All answers of one kind of model."""
    model, out = tmp_path_factory.mktemp("model"), tmp_path_factory.mktemp("numbers") / "answers.json"
    with tempfile.TemporaryDirectory(prefix="sgt-") as runtime_dir:
        done = subprocess.run(
            program("real.number_scenarios", request.param, runtime_dir, str(model), str(out)),
            capture_output=True,
            text=True,
            timeout=580,
            env={**os.environ, **IMPORTABLE},
        )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(out.read_text())
    return found


def test_the_engine_answers_what_it_should(answers: dict[str, Any]) -> None:
    refused = ["refused" in answer for answer in answers["engine"]]
    assert refused == [number >= answers["answered"] for number in range(len(refused))], answers["engine"]


@pytest.mark.parametrize("mode", ["subinterp", "process", "thread"])
def test_every_shard_answers_as_the_engine(answers: dict[str, Any], mode: str) -> None:
    for number, (call, expected) in enumerate(zip(answers["calls"], answers["engine"], strict=True)):
        for index, shard in enumerate(answers[mode]):
            for form, got in zip(("coroutine", "blocking"), shard[number], strict=True):
                where = f"{call} on shard {index}, {form}"
                if "refused" in expected:
                    assert "refused" in got, where
                else:
                    assert timeless(got) == close(timeless(expected)), where
                    assert shape(got) == shape(expected), where


def test_pairs_and_texts_go_together(answers: dict[str, Any]) -> None:
    if answers["mixed"] is not None:
        assert answers["mixed"] == ["list", "dict"] * 20


def timeless(value: Any) -> Any:
    """Without ids and times."""
    if isinstance(value, dict):
        return {key: timeless(item) for key, item in value.items() if key not in _TIMES}
    return [timeless(item) for item in value] if isinstance(value, list) else value


def close(value: Any) -> Any:
    """Numbers of half the precision may differ by a rounding: what is computed together is not the same each time."""
    if isinstance(value, dict):
        return {key: close(item) for key, item in value.items()}
    if isinstance(value, list):
        return [close(item) for item in value]
    return pytest.approx(value, rel=1e-2, abs=1e-3) if isinstance(value, float) else value


def shape(value: Any) -> Any:
    """The keys in their order."""
    if isinstance(value, dict):
        return [(key, shape(item)) for key, item in value.items()]
    return [shape(item) for item in value] if isinstance(value, list) else None
