"""ray_serve.py: a gateway in a replica of Ray Serve, with a real engine in a process of the replica's."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from sglang_subgw.contract import segment_names

pytestmark = [
    pytest.mark.sglang,
    # Ray alone takes a minute to start and stop on two cores.
    pytest.mark.timeout(600),
    pytest.mark.skipif(importlib.util.find_spec("sglang") is None, reason="sglang is not installed"),
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="ray is not installed"),
]
BODY = {"text": "The capital of France is", "sampling_params": {"temperature": 0, "max_new_tokens": 8}}


def until(condition: Callable[[], bool], seconds: float) -> None:
    """Wait for what processes of Ray's do."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.1)


def segments_of(directory: str) -> list[str]:
    """Those of processes of the Ray that lives in `directory`: other tests run on this machine as well."""
    found = []
    for name, pid in segment_names().items():
        with contextlib.suppress(OSError):
            if f"RAY_TMPDIR={directory}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                found.append(name)
    return found


def test_its_shards_and_ray_s_proxy_answer_alike_and_its_engine_ends_with_it(examples: Path):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    with tempfile.TemporaryDirectory(prefix="r-", dir="/tmp") as temporary:
        environment |= {"RAY_TMPDIR": temporary, "RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}
        with subprocess.Popen(
            [sys.executable, str(examples / "ray_serve.py"), json.dumps({}), str(port)],
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        ) as program:
            try:
                assert program.stdout is not None
                lines = iter(program.stdout.readline, "")
                url = next(line for line in lines if line.startswith("shards at ")).split()[-1]
                # The engine's owner, and the gateway in the replica.
                assert len(segments_of(temporary)) == 2
                shards = [httpx.post(f"{url}/generate", json=BODY, timeout=60) for _ in range(4)]
                proxied = httpx.post(f"http://127.0.0.1:{port}/", json=BODY, timeout=60)
                assert {answer.json()["text"] for answer in (*shards, proxied)} == {" Paris."}
                assert {answer.headers["x-sglang-subgw-shard"] for answer in shards} == {"0", "1"}
                program.send_signal(signal.SIGTERM)
                assert program.wait(120) == 0
            finally:
                program.kill()
        until(lambda: not segments_of(temporary), 30)
