"""A real SGLang engine: what it tells, what it survives, and that nothing of it is left."""

from __future__ import annotations

import getpass
import importlib.util
import json
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest

from sglang_subgw.engine.demo.model import ensure_demo_model
from support.programs import IMPORTABLE, program

pytestmark = [
    pytest.mark.sglang,
    pytest.mark.timeout(600),
    pytest.mark.skipif(importlib.util.find_spec("sglang") is None, reason="sglang is not installed"),
]


def _run(name: str, runtime_dir: Path, *arguments: str) -> dict[str, Any]:
    """A scenario's result; its process must end well, and leave nothing."""
    with tempfile.TemporaryDirectory() as temporary:
        done = subprocess.run(
            program("real.engine_scenarios", name, str(runtime_dir), *arguments),
            capture_output=True,
            text=True,
            timeout=580,
            env={**os.environ, **IMPORTABLE, "TMPDIR": temporary},
        )
        assert done.returncode == 0, done.stderr
        # Caches, which are a user's and not an engine's, are named after the user.
        assert [entry for entry in os.listdir(temporary) if getpass.getuser() not in entry] == []
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert result["children"] == []
    assert result["files"] == []
    assert result["shm"] == []
    result["stderr"] = done.stderr
    return result


@pytest.fixture(scope="module")
def model_dir() -> Path:
    """The demo model where every run finds it."""
    return ensure_demo_model()


@pytest.fixture(scope="module")
def served(model_dir: Path, module_runtime_dir: Path) -> dict[str, Any]:
    """One engine's whole life."""
    return _run("serve", module_runtime_dir)


def test_the_contract_tells_what_the_engine_is(served: dict[str, Any]) -> None:
    contract = served["contract"]
    model, wire = contract["model"], contract["wire"]
    assert served["same_contract"]
    assert re.fullmatch("[0-9a-f]{12}", contract["engine_id"])
    assert wire["worker_endpoint"].startswith(f"ipc://{wire['runtime_dir']}/")
    assert wire["codec"] == "pickle"
    assert (model["served_model_name"], model["model_type"], model["context_length"]) == ("demo", "llama", 4096)
    assert model["max_req_input_len"] < model["context_length"]
    assert model["special_tokens"]["bos_token"] == "<|begin|>"
    assert "add_generation_prompt" in model["chat_template"]
    assert model["chat_template_content_format"] == "string"
    assert contract["features"]["grammar_backend"] == "xgrammar"
    assert contract["server_args"]["tokenizer_worker_num"] == 2
    assert contract["server_args"]["attention_backend"] == "torch_native"
    assert "launch_command" in contract["server_args"]
    assert contract["scheduler_info"]["max_total_num_tokens"] > 0
    assert contract["scheduler_info"]["startup_time"]["load_weight"] > 0
    assert served["tokenizer_mode"] == "0o600"


def test_it_generates_and_ends(served: dict[str, Any]) -> None:
    assert served["fact"]["text"].startswith(" Paris")
    assert served["fact"]["meta_info"]["finish_reason"]["type"] == "stop"
    assert served["fact"]["text"] == served["again"]
    assert re.fullmatch("[0-9]{3}-[a-c]{2}", served["regex"])
    assert set(json.loads(served["json"]["text"])) == {"n", "s"}


def test_its_children_ignore_the_signals_of_a_group(served: dict[str, Any]) -> None:
    assert served["router"]
    assert served["handlers_kept"]
    assert served["threads"] == []


def test_a_killed_scheduler_is_noticed_at_once(served: dict[str, Any]) -> None:
    assert "scheduler" in served["death"]
    assert "signal 9" in served["death"]
    assert served["death_seconds"] < 5


def test_two_workers_read_its_kv_events_and_loads(runtime_dir: Path) -> None:
    result = _run("published", runtime_dir)
    first, second = result["read"]
    assert first == second
    assert result["connections"] == 1, "subscribed to once, by the engine's side"
    stored = [event for event in first if event["type"] == "BlockStored"]
    tokens = [token for event in stored for token in event["token_ids"]]
    assert tokens[:40] == list(range(100, 140))
    assert set(result["output_ids"][:-1]) <= set(tokens[40:])
    for event in stored:
        assert len(event["block_hashes"]) * event["block_size"] == len(event["token_ids"])
        assert event["block_size"] == result["kv_events"]["block_size"]
        assert (event["dp_rank"], event["medium"], event["lora_id"]) == (0, "GPU", None)
    assert first[-1] == {"dp_rank": 0, "number": first[-1]["number"], "type": "AllBlocksCleared"}
    numbers = [event["number"] for event in result["past"]]
    assert numbers[0] == 0
    assert sorted(set(numbers)) == list(range(numbers[-1] + 1))
    assert result["past"][-len(first) :] == first
    [one], [other] = result["loads"]
    assert one == other
    assert one["max_total_num_tokens"] > 0
    assert one["memory"]["token_capacity"] == one["max_total_num_tokens"]
    assert result["core"]
    assert result["threads"] == []


def test_a_router_that_dies_of_a_message_is_noticed_and_takes_nobody_along(runtime_dir: Path) -> None:
    result = _run("router", runtime_dir)
    assert result["death"].startswith("SGLang's router ended: UnpicklingError")
    assert result["router"] is False
    assert result["threads"] == []


def test_the_start_is_quiet_and_says_its_phases(served: dict[str, Any]) -> None:
    assert served["phases"][0] == "importing SGLang"
    assert served["phases"].index("starting the scheduler") < served["phases"].index("loading the model")
    assert served["stderr"] == ""


def test_a_missing_model_is_named(runtime_dir: Path) -> None:
    result = _run("fail", runtime_dir, "--model-path", "/nowhere/at-all")
    assert result["error"] == "EngineStartError"
    assert "/nowhere/at-all" in result["message"]


def test_an_unknown_argument_is_named(runtime_dir: Path) -> None:
    result = _run("fail", runtime_dir, "--no-such-option", "3", "--model-path", "/nowhere")
    assert result["error"] == "ConfigError"
    assert "--no-such-option" in result["message"]


def test_a_key_that_would_not_be_asked_for_is_refused(runtime_dir: Path) -> None:
    result = _run("fail", runtime_dir, "--api-key", "secret", "--model-path", "/nowhere")
    assert result["error"] == "ConfigError"
    assert "--api-key" in result["message"]
    assert "secret" not in result["message"]


def test_a_scheduler_that_fails_gives_its_reason(runtime_dir: Path, model_dir: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(model_dir, broken)
    (broken / "model.safetensors").write_bytes(os.urandom(256))
    result = _run("fail", runtime_dir, "--model-path", str(broken))
    assert result["error"] == "EngineStartError"
    assert "safetensor" in result["message"].lower()
    assert result["threads"] == []


def test_an_interrupted_start_leaves_nothing(runtime_dir: Path) -> None:
    result = _run("interrupt", runtime_dir)
    assert result["interrupted"]
    assert result["threads"] == []
