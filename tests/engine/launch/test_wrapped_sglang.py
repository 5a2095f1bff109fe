"""A real sglang.Engine that its maker wraps: shared, used meanwhile, and given back as it was."""

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
    pytest.mark.timeout(600),
    pytest.mark.skipif(importlib.util.find_spec("sglang") is None, reason="sglang is not installed"),
]


def _run(name: str) -> dict[str, Any]:
    """A scenario's result; its process must end well, and leave nothing of this package's."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    with tempfile.TemporaryDirectory() as temporary:
        done = subprocess.run(
            program("real.wrapped_scenarios", name),
            capture_output=True,
            text=True,
            timeout=580,
            env={**environment, **IMPORTABLE, "TMPDIR": temporary, "SGLANG_SUBGW_CPU": "1", "OMP_NUM_THREADS": "1"},
        )
        assert done.returncode == 0, done.stderr
        assert [entry for entry in os.listdir(temporary) if entry.startswith("subgw-")] == []
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert result["threads"] == []
    assert result["segments"] == []
    result["stderr"] = done.stderr
    return result


@pytest.fixture(scope="module")
def life() -> dict[str, Any]:
    """One Engine's whole life, with several gateways."""
    return _run("life")


def test_in_every_mode_shards_and_its_maker_get_the_same_answers(life: dict[str, Any]):
    assert len(life["texts"]) == 12
    assert set(life["texts"]) == {life["expected"]}


def test_gateways_share_it_and_find_the_same_place_again(life: dict[str, Any]):
    assert life["shared"]
    assert life["homes"] == 1


def test_public_bugs_14_a_frame_that_can_not_be_read_is_dropped(life: dict[str, Any]):
    assert life["dropped"] == 1
    assert "The router dropped a frame of 24 bytes" in life["stderr"]


def test_its_watchdog_and_its_maker_s_signals_are_given_back(life: dict[str, Any]):
    assert life["watchdog"] == [True, False, True]
    assert life["handlers_kept"]


def test_a_crash_is_told_to_clients_where_signals_are_the_gateway_s(life: dict[str, Any]):
    crash = life["crash"]
    assert crash["reason"] == "a process of SGLang's crashed"
    assert crash["last"][-1] == "data: [DONE]"
    assert '"code":503' in crash["last"][-2]
    assert crash["handlers_kept"]


def test_a_killed_scheduler_is_told_to_clients_and_leaves_its_maker_alive(life: dict[str, Any]):
    kill = life["kill"]
    assert "scheduler_0" in kill["reason"]
    assert kill["reason"].endswith("was killed by signal 9")
    assert '"code":503' in kill["last"][-2]
    assert not kill["watchdog"]


def test_made_in_a_running_loop_it_is_used_there_and_wrapped_there():
    result = _run("loop")
    assert len(result["texts"]) == 8
    assert len(set(result["texts"])) == 1
