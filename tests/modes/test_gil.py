"""The GIL comes back with an import: said by the module's name, and refused."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import warnings
from pathlib import Path

import pytest

from sglang_subgw.errors import ModeUnavailable
from sglang_subgw.modes import gil

SOURCE = """
#include <Python.h>
static struct PyModuleDef def = {PyModuleDef_HEAD_INIT, "needsgil", 0, -1, 0};
PyMODINIT_FUNC PyInit_needsgil(void) { return PyModule_Create(&def); }
"""
TRY = """
import sys
sys.path.insert(0, sys.argv[1])
from sglang_subgw.errors import ModeUnavailable
from sglang_subgw.modes import gil
from sglang_subgw.shard import entry
gil.require_off(lambda: None)
for load in (lambda: __import__("needsgil"), lambda: None):
    try:
        gil.require_off(load)
    except ModeUnavailable as exc:
        print(exc.message)
"""


@pytest.fixture
def free_threaded(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """A build that can do without, as far as the module knows; what it says of the GIL, one look after the other."""
    looks: list[bool] = []
    monkeypatch.setattr(gil, "free_threaded_build", lambda: True)
    monkeypatch.setattr(gil, "gil_enabled", lambda: looks.pop(0))
    return looks


def test_an_ordinary_build_always_has_one(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[int] = []
    monkeypatch.setattr(gil, "free_threaded_build", lambda: False)
    gil.require_off(lambda: loaded.append(1))
    assert loaded == [1]


def test_the_module_in_cpythons_warning_is_named(free_threaded: list[bool]) -> None:
    def load() -> None:
        warnings.warn(
            "The global interpreter lock (GIL) has been enabled to load module 'some.fast', which has not declared …",
            RuntimeWarning,
            stacklevel=1,
        )

    free_threaded += [False, True]
    with pytest.raises(ModeUnavailable, match=r"the extension module some\.fast turned it on"):
        gil.require_off(load)


def test_no_gil_no_trouble(free_threaded: list[bool]) -> None:
    free_threaded += [False, False]
    gil.require_off(lambda: None)


def test_without_a_warning_it_is_refused_all_the_same(free_threaded: list[bool]) -> None:
    # An ordinary build says of itself what PYTHON_GIL=1 says of another.
    free_threaded += [False, True]
    with pytest.raises(ModeUnavailable, match="turned it on|keeps it on"):
        gil.require_off(lambda: None)


@pytest.mark.skipif(not gil.free_threaded_build(), reason="needs a free-threaded build")
def test_for_real(tmp_path: Path) -> None:
    compiler = shutil.which("cc") or pytest.skip("needs a C compiler")
    (tmp_path / "needsgil.c").write_text(SOURCE)
    subprocess.run(
        [
            compiler,
            "-shared",
            "-fPIC",
            f"-I{sysconfig.get_path('include')}",
            tmp_path / "needsgil.c",
            "-o",
            tmp_path / "needsgil.so",
        ],
        check=True,
    )
    run = subprocess.run([sys.executable, "-c", TRY, tmp_path], capture_output=True, text=True, check=True)
    assert run.stdout.splitlines() == [
        "Mode thread needs the GIL off, and the extension module needsgil turned it on: "
        "it doesn't say that it can do without.",
        "Mode thread needs the GIL off, and the extension module needsgil, which this process imported before, "
        "turned it on.",
    ]
    assert run.stderr == ""
