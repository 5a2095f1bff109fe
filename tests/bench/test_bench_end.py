"""However a bench ends, its processes end with it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sglang_subgw.bench.system.cpu import descendants
from sglang_subgw.contract import process_start_time, segment_names

pytestmark = pytest.mark.timeout(180)

COMMAND = ("chat-64", "--engine", "wire", "--modes", "process", "--shards", "2", "--streams", "4", "--no-floor")


def _lives(pid: int) -> bool:
    return process_start_time(pid) is not None


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM], ids=["killed", "stopped"])
def test_a_bench_that_is_ended_leaves_no_process_and_no_segment(signum: signal.Signals, short_dir: Path) -> None:
    bench = subprocess.Popen(
        [sys.executable, "-m", "sglang_subgw", "bench", *COMMAND, "--seconds", "60"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "TMPDIR": str(short_dir)},
    )
    # Wire engine, host, two shards, load generator.
    while len(family := descendants(bench.pid)) < 6:
        assert bench.poll() is None
        time.sleep(0.05)
    bench.send_signal(signum)
    assert bench.wait() == (128 + signum if signum == signal.SIGTERM else -signum)
    while any(map(_lives, family)):
        time.sleep(0.05)
    assert not set(segment_names().values()) & set(family)
