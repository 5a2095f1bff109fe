"""The soak test, short; `SUBGW_SOAK_SECONDS=600 make test ENVS=py313 PYTEST_ARGS="-k soak"` runs it for ten minutes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from soak_work import WORK

from sglang_subgw.modes import images
from sglang_subgw.modes.gil import free_threaded_build

SECONDS = float(os.environ.get("SUBGW_SOAK_SECONDS", "5"))


def test_there_is_work_for_every_curated_module():
    assert set(WORK) == set(images.CURATED)


@pytest.mark.skipif(free_threaded_build(), reason="a free-threaded build has no images")
@pytest.mark.timeout(SECONDS + 240)
def test_every_curated_module_works_in_four_interpreters_and_main_at_once():
    soak = Path(__file__).with_name("soak.py")
    run = subprocess.run(
        [sys.executable, "-X", "faulthandler", soak, "--seconds", str(SECONDS)],
        capture_output=True,
        text=True,
        timeout=SECONDS + 200,
    )
    assert run.returncode == 0, run.stderr[-8000:]
    summary = json.loads(run.stdout.splitlines()[-1])
    assert summary["errors"] == 0
    assert len(summary["interpreters"]) == 5
    assert summary["beside"] >= 1
    assert {"msgspec", "tokenizers", "zmq", "uvloop", "httptools"} <= summary["turns"].keys()
    assert min(summary["turns"].values()) >= 5, "each of the five used each at least once"
