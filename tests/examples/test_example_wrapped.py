"""wrapped_engine.py: a real Engine that its program made, opened in shards."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import httpx
import pytest

from sglang_subgw.engine.demo.model import ensure_demo_model

pytestmark = [
    pytest.mark.sglang,
    pytest.mark.timeout(300),
    pytest.mark.skipif(importlib.util.find_spec("sglang") is None, reason="sglang is not installed"),
]


def test_it_serves_beside_its_own_use_until_a_signal(examples: Path):
    arguments = {"model_path": str(ensure_demo_model()), "device": "cpu", "attention_backend": "torch_native"}
    arguments |= {"max_total_tokens": 20000, "sleep_on_idle": True}
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    environment |= {"SGLANG_SUBGW_CPU": "1", "OMP_NUM_THREADS": "1"}
    with (
        tempfile.TemporaryDirectory() as temporary,
        subprocess.Popen(
            [sys.executable, str(examples / "wrapped_engine.py"), json.dumps(arguments), "0"],
            stdout=subprocess.PIPE,
            text=True,
            env=environment | {"TMPDIR": temporary},
        ) as program,
    ):
        try:
            assert program.stdout is not None
            url = program.stdout.readline().removeprefix("serving at ").strip()
            own = program.stdout.readline().removeprefix("its own answer:").rstrip("\n")
            body = {
                "text": "The capital of France is",
                "sampling_params": {"temperature": 0, "max_new_tokens": 8},
            }
            answers = [httpx.post(f"{url}/generate", json=body, timeout=60) for _ in range(4)]
            assert [answer.json()["text"] for answer in answers] == [own] * 4
            assert {answer.headers["x-sglang-subgw-shard"] for answer in answers} == {"0", "1"}
            program.send_signal(signal.SIGTERM)
            assert program.wait(60) == 0
            assert [entry for entry in os.listdir(temporary) if entry.startswith("subgw-")] == []
        finally:
            program.kill()
