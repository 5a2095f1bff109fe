"""Whether threads of this process really run at once: the GIL can come back with any import."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import threading
import warnings
from collections.abc import Callable
from importlib.machinery import ExtensionFileLoader
from typing import Any, Final

from ..errors import ModeUnavailable
from .trail import gil_enabled

_lock = threading.Lock()
_ASK_SECONDS: Final = 30.0


def free_threaded_build() -> bool:
    """Whether this Python can do without a GIL at all."""
    return bool(sysconfig.get_config_var("Py_GIL_DISABLED"))


def require_off(load: Callable[[], Any]) -> None:
    """Run `load`, which imports; raises ModeUnavailable, with the module's name, if there is a GIL after it.

    On an ordinary build, where there always is one, it only runs `load`.
    """
    if not free_threaded_build():
        load()
        return
    # Warnings are caught for the whole process: one shard at a time.
    with _lock:
        before = gil_enabled()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", RuntimeWarning)
            load()
    if gil_enabled():
        raise ModeUnavailable(f"Mode thread needs the GIL off, and {_culprit(before, caught)}.", hint=_HINT)


_HINT = "--mode process serves all the same."


def _culprit(before: bool, caught: list[warnings.WarningMessage]) -> str:
    # Since 3.13: "The global interpreter lock (GIL) has been enabled to load module 'x', which …"
    for warning in caught:
        if match := re.search(r"\(GIL\) has been enabled to load module '([^']+)'", str(warning.message)):
            return f"the extension module {match[1]} turned it on: it doesn't say that it can do without"
    if getattr(sys.flags, "gil", None) == 1:
        return "PYTHON_GIL=1 or -X gil=1 keeps it on"
    if before and (name := _find_among_loaded()):
        return f"the extension module {name}, which this process imported before, turned it on"
    return "an import turned it on"


_ASK: Final = """
import importlib, sys
for name in sys.argv[1:]:
    try:
        importlib.import_module(name)
    except Exception:
        continue
    if sys._is_gil_enabled():
        print(name)
        break
"""


def _find_among_loaded() -> str:
    """The first of this process's extension modules after which a new process has a GIL, "" if there is none."""
    loaded = [
        name
        for name, module in list(sys.modules.items())
        if isinstance(getattr(getattr(module, "__spec__", None), "loader", None), ExtensionFileLoader)
        and name.partition(".")[0] not in sys.stdlib_module_names
    ]
    path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    try:
        run = subprocess.run(
            [sys.executable, "-P", "-W", "ignore", "-c", _ASK, *loaded],
            env={**os.environ, "PYTHONPATH": path},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_ASK_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return run.stdout.strip().rpartition("\n")[2]
