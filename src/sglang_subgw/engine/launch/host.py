"""What SGLang changes in the process that launches it, and how that process gets it back."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Final

from ..demo.platform import ASKED_FOR

CPU: Final[Mapping[str, str | None]] = {
    ASKED_FOR: "1",
    # A tiny batch on several threads spends its time in their barriers.
    "OMP_NUM_THREADS": "1",
    # Three processes import SGLang at once: 25 s with its bytecode cached, over 100 s without.
    "PYTHONDONTWRITEBYTECODE": None,
}
"""Environment of an engine on plain CPU."""
QUIET: Final[Mapping[str, str | None]] = {"PYTHONWARNINGS": "ignore", "TQDM_DISABLE": "1"}
"""Environment of an engine whose user did not ask for more than errors."""


@contextmanager
def guarded(socket_dir: Path) -> Iterator[None]:
    """For the launch: new ipc sockets go to `socket_dir`; what SGLang changes in this process is undone after it."""
    with ExitStack() as stack:
        stack.enter_context(_temporary_files_in(socket_dir))
        stack.enter_context(_logging_kept())
        stack.enter_context(_event_loop_policy_kept())
        stack.enter_context(_process_title_kept())
        stack.enter_context(_crash_handler_kept())
        yield


@contextmanager
def environment(wanted: Mapping[str, str | None]) -> Iterator[None]:
    """These variables for the children to inherit, None for unset; what the user has set himself stays."""
    before = {name: os.environ.get(name) for name in wanted}
    dont_write = sys.dont_write_bytecode
    for name, value in wanted.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ.setdefault(name, value)
    if "PYTHONDONTWRITEBYTECODE" in wanted:
        sys.dont_write_bytecode = False
    try:
        yield
    finally:
        sys.dont_write_bytecode = dont_write
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def stop_signals_ignored() -> Iterator[None]:
    """For a spawn: the child starts with SIGINT and SIGTERM ignored.

    Both reach a whole process group (a terminal's Ctrl-C, a service manager's stop), and the gateway must be able to
    drain while the engine goes on; it ends the children itself.
    """
    before = {signum: signal.signal(signum, signal.SIG_IGN) for signum in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)


@contextmanager
def router_errors_reported() -> Iterator[None]:
    """For the router's start: an error in it ends its task, which is watched.

    SGLang's own answer is to kill this process and all its children, before anybody has told a client.
    """
    from sglang.srt.managers import multi_tokenizer_mixin as mixin

    before = mixin.print_exception_wrapper
    mixin.print_exception_wrapper = lambda function: function()
    try:
        yield
    finally:
        mixin.print_exception_wrapper = before


@contextmanager
def _temporary_files_in(directory: Path) -> Iterator[None]:
    # SGLang names its sockets by NamedTemporaryFile. Setting tempfile.tempdir would also move torch's and Triton's
    # caches, for good: they put their place into the environment.
    before = tempfile.NamedTemporaryFile
    tempfile.NamedTemporaryFile = partial(before, dir=directory)  # type: ignore[assignment]
    try:
        yield
    finally:
        tempfile.NamedTemporaryFile = before


@contextmanager
def _logging_kept() -> Iterator[None]:
    # SGLang calls basicConfig(force=True) twice.
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    for handler in handlers:
        root.removeHandler(handler)
    try:
        yield
    finally:
        logging.getLogger("sglang").setLevel(root.level)
        root.handlers[:] = handlers
        root.setLevel(level)


@contextmanager
def _event_loop_policy_kept() -> Iterator[None]:
    before = asyncio.get_event_loop_policy()
    try:
        yield
    finally:
        asyncio.set_event_loop_policy(before)


@contextmanager
def warnings_ignored(yes: bool) -> Iterator[None]:
    """For the import of SGLang, which warns of what this machine is not."""
    with warnings.catch_warnings():
        if yes:
            warnings.simplefilter("ignore")
        yield


@contextmanager
def _process_title_kept() -> Iterator[None]:
    try:
        from setproctitle import getproctitle, setproctitle
    except ImportError:
        yield
        return
    before = getproctitle()
    try:
        yield
    finally:
        setproctitle(before)


@contextmanager
def _crash_handler_kept() -> Iterator[None]:
    # SGLang's own for SIGQUIT kills the whole process tree; its processes send none where they can end by themselves.
    before = signal.getsignal(signal.SIGQUIT)
    try:
        yield
    finally:
        # None was not set from Python, and can't be.
        if before is not None:
            signal.signal(signal.SIGQUIT, before)
