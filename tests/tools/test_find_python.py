"""tools/find_python.sh on machines made of fake interpreters."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "tools" / "find_python.sh"


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A home, and a copy of the script beside an empty .cache; /usr/bin stays, for the shell's own tools."""
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / SCRIPT.name).symlink_to(SCRIPT)
    return tmp_path


def interpreter(path: Path, says: str, code: int = 0) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho '{says}'\nexit {code}\n")
    path.chmod(0o755)
    return str(path)


def find(machine: Path, *versions: str, path: str = "", **environ: str) -> subprocess.CompletedProcess[str]:
    search = os.pathsep.join(filter(None, [path, "/usr/bin:/bin"]))
    return subprocess.run(
        ["/bin/sh", machine / "tools" / SCRIPT.name, *versions],
        env={"PATH": search, "HOME": str(machine), **environ},
        capture_output=True,
        text=True,
        check=False,
        timeout=50,
    )


def test_a_shim_that_fails_is_passed_over_for_the_real_interpreter(machine: Path) -> None:
    interpreter(machine / "shims" / "python9.13", "pyenv: python9.13: command not found", 127)
    real = interpreter(machine / ".pyenv" / "versions" / "9.13.0" / "bin" / "python9.13", "9.13")
    assert find(machine, "9.13", path=str(machine / "shims")).stdout == f"{real}\n"


def test_system_interpreter_alone(machine: Path) -> None:
    system = interpreter(machine / "usr bin" / "python9.13", "9.13")
    assert find(machine, "9.13", "9.14", path=str(machine / "usr bin")).stdout == f"{system}\n"


def test_versions_are_tried_in_order(machine: Path) -> None:
    newer = interpreter(machine / "bin" / "python9.14", "9.14")
    older = interpreter(machine / "bin" / "python9.13", "9.13")
    assert find(machine, "9.13", "9.14", path=str(machine / "bin")).stdout == f"{older}\n"
    assert find(machine, "9.14", "9.13", path=str(machine / "bin")).stdout == f"{newer}\n"


def test_a_free_threaded_build_is_another_thing(machine: Path) -> None:
    interpreter(machine / "bin" / "python9.13", "9.13t")
    found = find(machine, "9.13", path=str(machine / "bin"))
    assert (found.returncode, found.stdout) == (1, "")
    assert "bin/python9.13: it is 9.13t" in found.stderr
    assert find(machine, "9.13t", path=str(machine / "bin")).stdout == f"{machine}/bin/python9.13\n"


def test_a_free_threaded_one_that_was_built_here(machine: Path) -> None:
    built = machine / "cache" / "sglang_subgw" / "python-9.13t" / "bin" / "python9.13t"
    interpreter(built, "9.13t")
    assert find(machine, "9.13t", XDG_CACHE_HOME=str(machine / "cache")).stdout == f"{built}\n"
    assert find(machine, "9.13", XDG_CACHE_HOME=str(machine / "cache")).returncode == 1


def test_a_python_of_uv_in_the_project(machine: Path) -> None:
    own = machine / ".cache" / "python" / "cpython-9.13.7-linux-x86_64-gnu" / "bin" / "python9.13"
    interpreter(own, "9.13")
    assert Path(find(machine, "9.13").stdout.strip()).resolve() == own


def test_the_error_names_what_was_looked_at(machine: Path) -> None:
    interpreter(machine / "bin" / "python9.13", "ImportError: no module named _ssl", 1)
    found = find(machine, "9.13", "9.14", path=str(machine / "bin"))
    assert found.returncode == 1
    assert found.stderr.startswith("No Python 9.13 or 9.14 was found.")
    assert f"{machine}/.pyenv/versions" in found.stderr
    assert "bin/python9.13: it does not run: ImportError: no module named _ssl" in found.stderr


def test_python_variable_is_the_only_one_looked_at(machine: Path) -> None:
    interpreter(machine / "bin" / "python9.13", "9.13")
    other = interpreter(machine / "other", "9.12")
    found = find(machine, "9.13", path=str(machine / "bin"), PYTHON=other)
    assert (found.returncode, found.stderr) == (1, f"PYTHON={other} is 9.12; needed: 9.13\n")
    found = find(machine, "9.13", path=str(machine / "bin"), PYTHON="no-such-python")
    assert found.stderr.startswith("PYTHON=no-such-python can't be used: ")
