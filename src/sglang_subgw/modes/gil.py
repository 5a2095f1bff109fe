"""Whether threads of this process really run at once: the GIL can come back with any import."""

from __future__ import annotations

import re
import sys
import sysconfig
import threading
import warnings
from collections.abc import Callable
from typing import Any

from ..errors import ModeUnavailable
from .trail import gil_enabled

_lock = threading.Lock()


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
    if before:
        return "something that this process imported before turned it on"
    return "an import turned it on"
