"""Real engines that a Gateway makes: in this process, and in one of their own for a thread."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import tempfile
from typing import Any

import pytest

from support.programs import IMPORTABLE, program

pytestmark = [
    pytest.mark.sglang,
    pytest.mark.timeout(400),
    pytest.mark.skipif(importlib.util.find_spec("sglang") is None, reason="sglang is not installed"),
]


def _run(name: str) -> dict[str, Any]:
    """A scenario's result; its process must end well, and leave nothing."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    with tempfile.TemporaryDirectory() as temporary:
        done = subprocess.run(
            program("real.made_scenarios", name),
            capture_output=True,
            text=True,
            timeout=380,
            env={**environment, **IMPORTABLE, "TMPDIR": temporary},
        )
        assert done.returncode == 0, done.stderr
        assert [entry for entry in os.listdir(temporary) if entry.startswith("subgw-")] == []
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert result["children"] == []
    assert result["threads"] == []
    assert result["segments"] == []
    return result


def test_in_the_main_thread_it_is_in_this_process_and_public_bugs_18_no_signal_is_touched():
    result = _run("here")
    assert result["texts"] == [" Paris."] * 4
    assert result["in_this_process"]
    assert result["handlers_kept"]
    assert "scheduler" in result["failure"]
    assert "signal 9" in result["failure"]


def test_from_a_thread_it_is_in_a_process_of_its_own_and_public_bugs_18_no_signal_is_touched():
    result = _run("thread")
    assert result["texts"] == [" Paris."] * 3
    assert not result["in_this_process"]
    assert result["sglang_is_not_here"]
    assert result["handlers_kept"]
    assert result["flushed"]
    assert "/nowhere/at-all" in result["no_model"]


def test_a_stop_while_the_model_loads_ends_it_in_order():
    result = _run("stopped")
    assert result["failure"] == "The start was stopped."
    assert result["seconds"] < 30
