"""tools/run_tox.py with a stand-in for tox."""

from __future__ import annotations

import importlib.util
import sys
import time
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[2] / "tools" / "run_tox.py"
JUNIT = '<testsuites><testsuite tests="{0}" failures="{1}" errors="0" skipped="{2}"/></testsuites>'


@pytest.fixture
def run_tox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module in a project folder of its own; `tox` writes the counts that a test asks for."""
    spec = importlib.util.spec_from_file_location("run_tox", SCRIPT)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "run_tox", module)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(module, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(module, "find_python", lambda version: (f"/usr/bin/python{version}", ""))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bin" / "python"))
    return module


def tox(tmp_path: Path, body: str) -> None:
    path = tmp_path / "bin" / "tox"
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)


def writes(tests: int, failed: int, skipped: int, code: int) -> str:
    return f"echo '{JUNIT.format(tests, failed, skipped)}' >\"$SUBGW_RESULTS/$3.xml\"; exit {code}"


def last_line(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().out.splitlines()[-1]


def test_counts_add_up(run_tox: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tox(tmp_path, f"[ $3 = lint ] && exit 0; {writes(10, 0, 2, 0)}")
    assert run_tox.main(["lint", "py313", "py314"]) == 0
    assert last_line(capsys) == "17 passed, 0 failed, 4 skipped"


def test_failures_fail(run_tox: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tox(tmp_path, writes(3, 1, 0, 1))
    assert run_tox.main(["py313"]) == 1
    assert last_line(capsys) == "2 passed, 1 failed"


def test_an_install_that_breaks_fails(run_tox: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tox(tmp_path, "exit 2")
    assert run_tox.main(["py313"]) == 1
    assert last_line(capsys) == "0 passed, 1 failed"


def test_no_tests_yet_is_no_error(run_tox: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tox(tmp_path, writes(0, 0, 0, 5))
    assert run_tox.main(["py313"]) == 0
    assert "has no tests yet" in capsys.readouterr().out


def test_environments_that_are_missing_are_named(
    run_tox: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def find_python(version: str) -> tuple[str, str]:
        return ("", "No Python 3.14 was found.") if version == "3.14" else ("/usr/bin/python3.13", "")

    monkeypatch.setattr(run_tox, "find_python", find_python)
    tox(tmp_path, writes(1, 0, 0, 0))
    assert run_tox.main([]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "py314    not run: No Python 3.14 was found." in lines
    assert lines[-1] == f"{len(run_tox.ENVIRONMENTS) - 1} passed, 0 failed"
    assert run_tox.main(["py314"]) == 1


def test_what_still_runs_at_the_end_of_the_whole_time_is_stopped(
    run_tox: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_tox, "TOTAL_LIMIT_S", 1)
    tox(tmp_path, f"[ $3 = docs ] && exec sleep 60; {writes(1, 0, 0, 0)}")
    assert run_tox.main(["lint", "docs"]) == 1
    assert "docs     0 passed, 1 failed, 0 skipped; stopped after its limit" in capsys.readouterr().out


def builder(tmp_path: Path, body: str) -> None:
    path = tmp_path / "tools" / "build_free_threaded.sh"
    path.parent.mkdir()
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)


def test_an_interpreter_is_built_where_there_is_none(
    run_tox: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_tox, "find_python", lambda version: ("", f"No Python {version} was found."))
    builder(tmp_path, "echo building >&2; echo /built/python3.13t")
    tox(tmp_path, f'[ "${{PATH%%:*}}" = /built ] || exit 1; {writes(1, 0, 0, 0)}')
    assert run_tox.main(["py313t"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert "building" in out
    assert out[-1] == "1 passed, 0 failed"


def test_why_an_interpreter_can_not_be_built_is_said(
    run_tox: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_tox, "find_python", lambda version: ("", f"No Python {version} was found."))
    builder(tmp_path, "echo one >&2; echo 'packages are missing' >&2; exit 1")
    assert run_tox.main(["py313t"]) == 1
    assert "py313t   not run: packages are missing" in capsys.readouterr().out.splitlines()
    monkeypatch.setattr(run_tox, "BUILD_LIMIT_S", 0.2)
    builder_path = tmp_path / "tools" / "build_free_threaded.sh"
    builder_path.write_text("#!/bin/sh\nsleep 60\n")
    assert run_tox.main(["py313t"]) == 1
    assert "was not through within" in capsys.readouterr().out


def test_the_time_limit_ends_the_whole_group(
    run_tox: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_tox, "ENVIRONMENTS", (run_tox.Environment("py313", "3.13", limit_s=1),))
    tox(tmp_path, "sleep 600 & echo $! >child; wait")
    assert run_tox.main([]) == 1
    assert "stopped after its limit" in capsys.readouterr().out
    child = Path(f"/proc/{(tmp_path / 'child').read_text().strip()}/stat")
    deadline = time.monotonic() + 5
    while running(child) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not running(child)


def running(stat: Path) -> bool:
    try:
        return stat.read_text().split()[2] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_an_unknown_name_is_refused(run_tox: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_tox.main(["py27"]) == 2
    assert last_line(capsys).startswith("no such environment: py27; there are: lint, ")
