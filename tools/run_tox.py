"""Run tox in every environment this machine can provide, each within its time, and add up the results: `make test`.

run_tox.py [ENVIRONMENT...] [-- PYTEST ARGUMENT...]
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / ".tox" / "results"
NOTHING_COLLECTED = 5  # pytest's exit code


@dataclass(frozen=True)
class Environment:
    """One tox environment: the Python it needs, its time limit, and the space its packages take."""

    name: str
    python: str
    limit_s: int
    disk_gb: int = 1
    build: str = ""
    """The tool that provides its Python where the machine has none."""
    modes: str = ""
    """The shards' modes that it tests in a whole run, where another environment tests the rest; all if empty."""


BUILD_LIMIT_S = 30 * 60

TOTAL_LIMIT_S = 87 * 60
"""A CI run has 90 minutes: what is still running then is stopped, so that the results of all are told."""

# In the order they run: what fails fastest first.
ENVIRONMENTS = (
    Environment("lint", "3.13", limit_s=3 * 60),
    Environment("docs", "3.13", limit_s=2 * 60),
    Environment("py313", "3.13", limit_s=32 * 60, modes="subinterp,process"),
    Environment("py314", "3.14", limit_s=8 * 60),
    Environment("py313t", "3.13t", limit_s=22 * 60, disk_gb=2, build="build_free_threaded.sh", modes="thread"),
    Environment("sglang", "3.13", limit_s=58 * 60, disk_gb=12),
)


@dataclass
class Outcome:
    """What one environment came to; a check without test counts of its own (lint, an install) counts as one."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0
    note: str = ""


def find_python(version: str) -> tuple[str, str]:
    """The interpreter's path, or "" and why there is none."""
    environ = {k: v for k, v in os.environ.items() if k != "PYTHON"}
    run = subprocess.run(
        [ROOT / "tools" / "find_python.sh", version], capture_output=True, text=True, env=environ, check=False
    )
    if run.returncode == 0:
        return run.stdout.strip(), ""
    return "", run.stderr.strip().splitlines()[0]


def build_python(tool: str) -> tuple[str, str]:
    """The path of the interpreter that `tool` makes, or "" and why it can't; its progress is shown."""
    late = threading.Event()

    def stop() -> None:
        late.set()
        end(process)

    timer = threading.Timer(BUILD_LIMIT_S, stop)
    last = f"{tool} ended without a word"
    with subprocess.Popen(
        [ROOT / "tools" / tool], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        timer.start()
        try:
            for line in process.stderr:
                say(line.rstrip())
                last = line.strip() or last
            path = process.stdout.read().strip()
        except KeyboardInterrupt:
            end(process)
            raise
        finally:
            timer.cancel()
    if process.returncode == 0:
        return path, ""
    return "", f"{tool} was not through within {BUILD_LIMIT_S // 60} minutes" if late.is_set() else last


def missing(environment: Environment, python: str, why: str) -> str:
    """Why the environment can't be had here; "" if it can."""
    if not python:
        return why
    free_gb = shutil.disk_usage(ROOT).free // 10**9
    if free_gb < environment.disk_gb and not (ROOT / ".tox" / environment.name).exists():
        return f"{free_gb} GB of disk are free, it takes {environment.disk_gb}"
    return ""


def run_tox(environment: Environment, python: str, pytest_args: list[str], limit_s: float, modes: str) -> Outcome:
    """Run one environment to its end or its time limit."""
    results = RESULTS / f"{environment.name}.xml"
    results.unlink(missing_ok=True)
    tox = Path(sys.executable).parent / "tox"
    environ = dict(os.environ, SUBGW_RESULTS=str(RESULTS))
    if modes:
        environ["SUBGW_TEST_MODES"] = modes
    environ["PATH"] = os.pathsep.join([str(Path(python).parent), environ.get("PATH", os.defpath)])
    started = time.monotonic()
    process = subprocess.Popen(
        [tox, "run", "-e", environment.name, "--skip-missing-interpreters", "false", "--", *pytest_args],
        cwd=ROOT,
        env=environ,
        start_new_session=True,
    )
    try:
        code = process.wait(limit_s)
    except subprocess.TimeoutExpired:
        end(process)
        outcome = read(results)
        outcome.failed += 1
        outcome.note = f"stopped after its limit of {limit_s / 60:.0f} minutes"
        return outcome
    except KeyboardInterrupt:
        end(process)
        raise
    outcome = read(results)
    took = f"{time.monotonic() - started:.0f} s"
    if code == NOTHING_COLLECTED and outcome == Outcome():
        outcome.note = f"has no tests yet ({took})"
    elif code == 0:
        if not results.exists():
            outcome.passed = 1
        outcome.note = took
    else:
        outcome.failed = max(outcome.failed, 1)
        outcome.note = f"tox exit code {code} ({took})"
    return outcome


def end(process: subprocess.Popen[Any]) -> None:
    """End tox and what it started: politely, then for good."""
    for number, grace_s in ((signal.SIGINT, 20), (signal.SIGTERM, 10), (signal.SIGKILL, 10)):
        try:
            os.killpg(process.pid, number)
            process.wait(grace_s)
        except subprocess.TimeoutExpired:
            continue
        except ProcessLookupError:
            break
    # tox may be gone while a test's child of the same group is not
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def read(results: Path) -> Outcome:
    """Counts from pytest's JUnit file; zeros if it was not written."""
    outcome = Outcome()
    if results.exists():
        for suite in ET.parse(results).getroot().iter("testsuite"):
            tests, failures, errors, skipped = (
                int(suite.get(key, 0)) for key in ("tests", "failures", "errors", "skipped")
            )
            outcome.failed += failures + errors
            outcome.skipped += skipped
            outcome.passed += max(0, tests - failures - errors - skipped)
    return outcome


def say(*lines: str) -> None:
    """Print at once, in order with what tox prints."""
    print(*lines, sep="\n", flush=True)


def main(arguments: list[str]) -> int:
    """Run what was asked for, or everything; 1 if anything failed."""
    split = arguments.index("--") if "--" in arguments else len(arguments)
    asked, pytest_args = arguments[:split], arguments[split + 1 :]
    if unknown := set(asked) - {environment.name for environment in ENVIRONMENTS}:
        say(f"no such environment: {', '.join(sorted(unknown))}; there are: {', '.join(e.name for e in ENVIRONMENTS)}")
        return 2
    RESULTS.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    outcomes: dict[str, Outcome] = {}
    unavailable: dict[str, str] = {}
    pythons: dict[str, str] = {}
    for environment in ENVIRONMENTS:
        if asked and environment.name not in asked:
            continue
        python, why = find_python(environment.python)
        if not python and environment.build:
            say(f"=== {environment.name}: {why}")
            python, why = build_python(environment.build)
        if reason := missing(environment, python, why):
            unavailable[environment.name] = reason
        else:
            pythons[environment.name] = python
    # Each mode once: only if those that share them are all there.
    share = not asked and all(environment.name in pythons for environment in ENVIRONMENTS if environment.modes)
    for environment in ENVIRONMENTS:
        if (python := pythons.get(environment.name, "")) == "":
            continue
        limit_s = max(0.0, min(environment.limit_s, TOTAL_LIMIT_S - (time.monotonic() - started)))
        say("", f"=== {environment.name} ({python}, at most {limit_s / 60:.0f} minutes)")
        modes = environment.modes if share else ""
        outcomes[environment.name] = run_tox(environment, python, pytest_args, limit_s, modes)
    say("", "=== summary")
    for name, outcome in outcomes.items():
        counts = f"{outcome.passed} passed, {outcome.failed} failed, {outcome.skipped} skipped"
        say(f"{name:8} {counts}; {outcome.note}")
    for name, reason in unavailable.items():
        say(f"{name:8} not run: {reason}")
    passed, failed, skipped = (
        sum(getattr(o, kind) for o in outcomes.values()) for kind in ("passed", "failed", "skipped")
    )
    if asked and unavailable:
        failed += len(unavailable)
    say(f"{passed} passed, {failed} failed" + (f", {skipped} skipped" if skipped else ""))
    return 1 if failed or not outcomes else 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
