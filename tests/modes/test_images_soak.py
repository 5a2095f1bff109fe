"""The soak test, short; `SUBGW_SOAK_SECONDS=600 make test ENVS=py313 PYTEST_ARGS="-k soak"` runs it for ten minutes."""

from __future__ import annotations

import json
import os
import subprocess

import pytest

from sglang_subgw.modes import images
from sglang_subgw.modes.gil import free_threaded_build
from support.programs import IMPORTABLE, program
from support.soak.work import WORK

SECONDS = float(os.environ.get("SUBGW_SOAK_SECONDS", "5"))


def test_there_is_work_for_every_curated_module():
    assert set(WORK) == set(images.CURATED)


@pytest.mark.skipif(free_threaded_build(), reason="a free-threaded build has no images")
@pytest.mark.timeout(SECONDS + 240)
def test_every_curated_module_works_in_four_interpreters_and_main_at_once():
    run = subprocess.run(
        program("soak.images", "--seconds", str(SECONDS)),
        capture_output=True,
        text=True,
        timeout=SECONDS + 200,
        env={**os.environ, **IMPORTABLE, "PYTHONFAULTHANDLER": "1"},
    )
    assert run.returncode == 0, run.stderr[-8000:]
    summary = json.loads(run.stdout.splitlines()[-1])
    assert summary["errors"] == 0
    assert len(summary["interpreters"]) == 5
    assert summary["beside"] >= 1
    assert {"msgspec", "tokenizers", "zmq", "uvloop", "httptools"} <= summary["turns"].keys()
    assert min(summary["turns"].values()) >= 5, "each of the five used each at least once"
