"""A child ends with its parent, whatever it is doing then, and only then."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

_CHILD = (
    "import os, sys, time; from sglang_subgw.system import tether; "
    "tether.hold({pid}); print(os.getpid(), flush=True); {do}"
)
_PARENT = """
import subprocess, sys, time, os
child = subprocess.Popen([sys.executable, "-c", {child!r}.replace("PARENT", str(os.getpid()))])
{then}
"""
_BUSY = {
    "in a call that keeps the GIL": "sum(range(10**11))",
    "asleep": "time.sleep(300)",
    "stopped": "os.kill(os.getpid(), 19)",
}


@contextmanager
def parent(child: str, then: str = "time.sleep(300)") -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A process with one child, once the child is held; the child's pid."""
    code = _PARENT.format(child=child, then=then)
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        try:
            yield process, pid
        finally:
            process.kill()
            if alive(pid):
                os.kill(pid, signal.SIGKILL)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except OSError:
        return False


def gone_within(pid: int, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while alive(pid):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


@pytest.mark.parametrize("do", _BUSY.values(), ids=_BUSY.keys())
def test_it_ends_with_its_parent(do: str):
    with parent(_CHILD.format(pid="PARENT", do=do)) as (process, pid):
        assert alive(pid)
        process.kill()
        assert gone_within(pid, 3)


def test_one_whose_parent_was_gone_before_it_looked_ends_at_once():
    """The parent's pid that was handed down isn't that of its present parent: whoever that is took it over."""
    code = _CHILD.format(pid=os.getppid(), do="time.sleep(300)")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=10, check=False)
    assert (done.returncode, done.stdout) == (1, "")


def test_one_that_still_reads_its_arguments_is_held_already(tmp_path: Path):
    """As SGLang's children do: what they import for reading their function takes as long as a start."""
    (tmp_path / "slow.py").write_text("import time, os\nprint(os.getpid(), flush=True)\ntime.sleep(300)\nrun = print\n")
    code = f"""
import multiprocessing, sys, types
from sglang_subgw.system.tether import Tether
sys.path.insert(0, {str(tmp_path)!r})
if __name__ == "__main__":
    slow = sys.modules["slow"] = types.ModuleType("slow")
    def run(): ...
    run.__module__, slow.run = "slow", run
    multiprocessing.get_context("spawn").Process(target=print, args=(Tether(), run)).start()
"""
    script = tmp_path / "launcher.py"
    script.write_text(code)
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        process.kill()
        process.wait()
        assert gone_within(pid, 3)


def test_a_parent_that_is_pid_1_is_a_parent():
    """In a container: a test for 1 would end every child at its start."""
    unshare = [shutil.which("unshare") or "", "--user", "--map-root-user", "--pid", "--fork", "--kill-child"]
    if not unshare[0] or subprocess.run([*unshare, "true"], capture_output=True, check=False).returncode:
        pytest.skip("pid namespaces can't be made here")
    child = _CHILD.format(pid="PARENT", do="print('lives', flush=True)")
    code = _PARENT.format(child=child, then="assert os.getpid() == 1; sys.exit(child.wait())")
    done = subprocess.run(
        [*unshare, sys.executable, "-c", code], capture_output=True, text=True, timeout=20, check=False
    )
    assert (done.returncode, done.stdout.split()) == (0, ["2", "lives"]), done.stderr
