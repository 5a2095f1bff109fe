"""attach_script.py: a batch job on a running engine."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from sglang_subgw.engine.attach.published import PublishedEngine
from sglang_subgw.simulated import SimulatedEngine
from support.stack import echoed


def test_every_line_is_answered_in_order(runtime_dir: Path, examples: Path):
    prompts = [f"<{number:02d}>" for number in range(40)]
    with SimulatedEngine(runtime_dir) as engine, PublishedEngine(engine) as published:
        done = subprocess.run(
            [sys.executable, "-W", "error", str(examples / "attach_script.py"), published.name],
            input="\n".join(prompts),
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        assert done.stderr == ""
        assert [json.loads(line) for line in done.stdout.splitlines()] == [echoed(prompt, 16) for prompt in prompts]
        assert engine.wait_idle(5)
        assert engine.violations == []
