"""Reading the engine's arguments as far as this package must, without SGLang."""

from __future__ import annotations

from pathlib import Path

import pytest

from sglang_subgw.engine.launch import arguments
from sglang_subgw.engine.launch.launch import launch
from sglang_subgw.errors import ConfigError


@pytest.mark.parametrize(
    "given", [["--model-path", "m"], ["--model-path=m"], ["--model", "m"], ["--config", "c.yaml"], {"model_path": "m"}]
)
def test_a_model_is_recognised(given: arguments.EngineArguments) -> None:
    assert arguments.names_model(given)


@pytest.mark.parametrize("given", [[], ["--model-impl", "x"], ["--log-level", "info"], {}])
def test_no_model_means_the_demo(given: arguments.EngineArguments) -> None:
    assert not arguments.names_model(given)


def test_the_demo_model_keeps_what_was_given() -> None:
    argv = arguments.with_demo_model(["--max-total-tokens", "9", "--served-model-name=x"], Path("/d"))
    assert argv == ["--max-total-tokens", "9", "--served-model-name=x", "--model-path", "/d"]
    keywords = arguments.with_demo_model({"max_total_tokens": 9}, Path("/d"))
    assert keywords == {"max_total_tokens": 9, "model_path": "/d", "served_model_name": "demo"}


def test_a_differing_number_of_workers_is_an_error() -> None:
    arguments.check_worker_count(["--tokenizer-worker-num", "4"], 4)
    arguments.check_worker_count([], 4)
    with pytest.raises(ConfigError, match=r"--shards 4 and --tokenizer-worker-num 2 differ"):
        arguments.check_worker_count(["--tokenizer-worker-num", "2"], 4)


def test_more_than_errors_is_loud() -> None:
    assert arguments.is_quiet([])
    assert arguments.is_quiet(["--log-level", "ERROR"])
    assert not arguments.is_quiet({"log_level": "info"})


def test_a_path_too_long_for_sockets_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="too long a path"):
        launch([], runtime_dir=tmp_path / ("x" * 100))
    assert list(tmp_path.iterdir()) == []
