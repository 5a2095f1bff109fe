"""Which modes and wire formats this Python has: the one place that says what is skipped, and why."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterable
from typing import Final

import pytest

from sglang_subgw.config import Mode
from sglang_subgw.modes.gil import free_threaded_build

_MSGSPEC: Final = importlib.util.find_spec("msgspec") is not None


def why_not(mode: Mode) -> str:
    """Why this Python can't have the mode, "" if it can."""
    if mode is Mode.SUBINTERP and free_threaded_build():
        return "mode subinterp is for builds with a GIL: no extension images in a free-threaded one"
    return ""


def needs(mode: Mode) -> pytest.MarkDecorator:
    """Marks a test, or a module's `pytestmark`, that is about one mode."""
    return pytest.mark.skipif(bool(why_not(mode)), reason=why_not(mode) or "has it")


def skip_module_without(mode: Mode) -> None:
    """Skip the calling test module, before it imports what is about the mode."""
    if reason := why_not(mode):
        pytest.skip(reason, allow_module_level=True)


def skip_unavailable(items: Iterable[pytest.Item]) -> None:
    """Skip every test that has a mode, or a wire format, among its parameters which this Python can't have."""
    for item in items:
        callspec = getattr(item, "callspec", None)
        for value in callspec.params.values() if callspec is not None else ():
            for one in value if isinstance(value, tuple) else (value,):
                if reason := _why_skip(one):
                    item.add_marker(pytest.mark.skip(reason=reason))


def left_to_others(item: pytest.Item) -> bool:
    """Whether the test is about a mode that another environment of the same run tests: SUBGW_TEST_MODES names ours."""
    ours = os.environ.get("SUBGW_TEST_MODES", "")
    callspec = getattr(item, "callspec", None)
    if not ours or callspec is None:
        return False
    values = [one for value in callspec.params.values() for one in (value if isinstance(value, tuple) else (value,))]
    return any(isinstance(one, Mode) and one not in ours.split(",") for one in values)


def _why_skip(parameter: object) -> str:
    if isinstance(parameter, Mode):
        return why_not(parameter)
    return "msgpack needs msgspec, which is not there" if parameter == "msgpack" and not _MSGSPEC else ""
