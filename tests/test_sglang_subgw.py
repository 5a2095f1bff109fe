"""The package: its names are loaded when they are asked for."""

from __future__ import annotations

import subprocess
import sys


def test_the_package_s_names_are_loaded_when_they_are_asked_for():
    program = """
import sys, sglang_subgw
assert "zmq" not in sys.modules and "asyncio" not in sys.modules
for name in sglang_subgw.__all__:
    assert getattr(sglang_subgw, name).__module__.startswith("sglang_subgw."), name
try:
    sglang_subgw.nothing
except AttributeError:
    print("ok")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30)
    assert (done.stdout.strip(), done.stderr) == ("ok", "")
