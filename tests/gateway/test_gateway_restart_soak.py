"""Mixed load while shards start again, one every few seconds: short here, 30 minutes by hand.

`SUBGW_RESTART_SOAK_SECONDS=1800 SUBGW_RESTART_SOAK_EVERY=20 make test ENVS=py313 PYTEST_ARGS="-s -k restart_soak"`
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path

import pytest

from sglang_subgw.config import Mode
from sglang_subgw.gateway.memory import private_bytes
from sglang_subgw.tokenization import server as tokenization
from support.programs import IMPORTABLE, program
from support.stack import Stack, running_stack

SECONDS = float(os.environ.get("SUBGW_RESTART_SOAK_SECONDS", "6"))
EVERY = float(os.environ.get("SUBGW_RESTART_SOAK_EVERY", "2"))
CLIENTS = 12


class MixedLoad:
    """The load's process."""

    def __init__(self, stack: Stack) -> None:
        host, port = stack.address
        self._process = subprocess.Popen(
            program("mixed_load", host, str(port), str(CLIENTS)),
            env={**os.environ, **IMPORTABLE},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def stop(self) -> dict:
        """Let the clients finish; what they saw."""
        out, _ = self._process.communicate("stop\n", timeout=60)
        assert self._process.returncode == 0
        return json.loads(out)


def to_tokenizer(runtime_dir: Path) -> int:
    """Descriptors of connections that shards without a tokenizer of their own keep: as many as were used at once."""
    connected, path = "03", str(runtime_dir / tokenization.SOCKET_NAME)
    rows = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()]
    # Its other end has no name.
    return 2 * sum(row[5] == connected and row[-1] == path for row in rows)


def resources(stack: Stack, runtime_dir: Path) -> dict[str, float]:
    """What this process and the shards' own hold."""
    pids = {shard["pid"] for shard in stack.gateway.shards} | {os.getpid()}
    return {
        "fds": sum(len(os.listdir(f"/proc/{pid}/fd")) for pid in pids) - to_tokenizer(runtime_dir),
        "private_mb": sum(private_bytes(pid) for pid in pids) / 1e6,
    }


def serving(stack: Stack, lives: int) -> bool:
    """All shards serve, and this is the sum of their lives so far."""
    shards = stack.gateway.shards
    return sum(s["generation"] for s in shards) == lives and all(s["state"] == "ready" for s in shards)


def quiet(stack: Stack) -> None:
    """Until no request and no connection is left."""
    stack.wait_idle()
    assert stack.wait_for(lambda: sum(shard["connections"] for shard in stack.gateway.shards) == 0)


@pytest.mark.timeout(SECONDS + 120)
def test_no_request_fails_untold_while_shards_start_again_under_mixed_load(runtime_dir, mode: Mode):
    config = {"drain_timeout_seconds": 10.0}
    with running_stack(runtime_dir, mode, shards=4, step_seconds=0.005, config=config) as stack:
        # Once around first: what only the first requests and the first restart need is there.
        warm = MixedLoad(stack)
        assert stack.wait_for(lambda: sum(shard["finished"] for shard in stack.gateway.shards) > 100, 30)
        stack.gateway.restart_shards()
        assert stack.wait_for(lambda: serving(stack, lives=8), 30), stack.gateway.shards
        warm.stop()
        quiet(stack)
        before, began, restarts = resources(stack, runtime_dir), time.monotonic(), 0
        load = MixedLoad(stack)
        while (left := began + SECONDS - time.monotonic()) > 0:
            stack.wait_for(lambda: False, min(EVERY, left))
            stack.gateway.restart_shards(restarts % 4)
            restarts += 1
            assert stack.wait_for(lambda lives=8 + restarts: serving(stack, lives), 30), stack.gateway.shards
            if SECONDS >= 60:
                print(
                    f"{time.monotonic() - began:.0f} s, {restarts} restarts: {resources(stack, runtime_dir)}",
                    flush=True,
                )
        seen = load.stop()
        quiet(stack)
        after = resources(stack, runtime_dir)
        grown = (after["private_mb"] - before["private_mb"]) / restarts
        print(json.dumps({"restarts": restarts, **seen, "before": before, "after": after, "mb_per_restart": grown}))
        assert seen["failures"] == []
        assert seen["told"] == {}, "a restart that is asked for costs no request"
        assert len(seen["answered"]) == 10
        # Flat: they do not grow with the restarts.
        assert stack.wait_for(lambda: resources(stack, runtime_dir)["fds"] <= before["fds"]), (before, after)
        stack.check()
