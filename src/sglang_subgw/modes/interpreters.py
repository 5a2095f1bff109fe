"""The one place for differences between Python versions' interpreter modules (PEP 734)."""

from __future__ import annotations

import sys
from typing import Any

from .. import errors
from ..errors import ModeUnavailable
from .gil import free_threaded_build

if free_threaded_build():
    raise ModeUnavailable(
        "Mode subinterp is for Pythons with a GIL, and this is a free-threaded build.",
        hint="--mode thread gives the same here, without a copy of anything.",
    )

if sys.version_info >= (3, 14):
    from concurrent import interpreters as _interpreters
else:
    try:
        from interpreters_backport import interpreters as _interpreters
    except ImportError as exc:
        raise ModeUnavailable(
            "Mode subinterp on Python 3.13 needs the package interpreters-pep-734, which is not installed.",
            hint="pip install interpreters-pep-734, or use --mode process.",
        ) from exc

ExecutionFailed: type[Exception] = _interpreters.ExecutionFailed


def create() -> Any:
    """A new isolated interpreter with its own GIL."""
    return _interpreters.create()


def account(failed: Exception) -> tuple[str, str]:
    """What ended the code of an interpreter, in one line and in full; the latter is "" for a SystemExit."""
    excinfo: Any = getattr(failed, "excinfo", None)
    kind = getattr(getattr(excinfo, "type", None), "__name__", "")
    if not kind:
        return str(failed).strip() or type(failed).__name__, ""
    message = str(excinfo.msg or "")
    if excinfo.type.__module__ == errors.__name__:
        return message, message
    return f"{kind}: {message}", "" if kind == SystemExit.__name__ else str(failed)


# On every 3.13, an interpreter that imports one of these when main has not crashes as it closes
# (cpython gh-136421, gh-136423); they are cheap, so all C modules that shards use are loaded here first.
_PRELOAD = (
    # By their public names: _asyncio on its own imports a half-made asyncio, which then lacks its C parts.
    "array",
    "asyncio",
    "bisect",
    "bz2",
    "codecs",
    "contextvars",
    "ctypes",
    "datetime",
    "decimal",
    "fcntl",
    "grp",
    "hashlib",
    "heapq",
    "json",
    "lzma",
    "math",
    "mmap",
    "multiprocessing.shared_memory",
    "opcode",
    "pickle",
    "queue",
    "random",
    "select",
    "socket",
    "ssl",
    "struct",
    "subprocess",
    "unicodedata",
    "uuid",
    "xml.etree.ElementTree",
    "zlib",
    "zoneinfo",
)


def preload() -> None:
    """Import in the main interpreter what shards will import; call before the first `create`."""
    for name in _PRELOAD:
        try:
            __import__(name)
        except ImportError:
            continue
