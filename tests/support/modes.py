"""Which modes this Python has: the one place that says what is skipped, and why."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from sglang_subgw.config import Mode
from sglang_subgw.modes.gil import free_threaded_build


def why_not(mode: Mode) -> str:
    """Why this Python can't have the mode, "" if it can."""
    if mode is Mode.SUBINTERP and free_threaded_build():
        return "mode subinterp is for builds with a GIL: no extension images in a free-threaded one"
    return ""


def needs(mode: Mode) -> pytest.MarkDecorator:
    """Marks a test, or a module's `pytestmark`, that is about one mode."""
    return pytest.mark.skipif(bool(why_not(mode)), reason=why_not(mode) or "has it")


def skip_unavailable(items: Iterable[pytest.Item]) -> None:
    """Skip every test that has a mode among its parameters which this Python can't have."""
    for item in items:
        callspec = getattr(item, "callspec", None)
        for value in callspec.params.values() if callspec is not None else ():
            for mode in value if isinstance(value, tuple) else (value,):
                if isinstance(mode, Mode) and (reason := why_not(mode)):
                    item.add_marker(pytest.mark.skip(reason=reason))
