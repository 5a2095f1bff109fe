"""Extension images: each interpreter loads its own copy of an extension module that isn't subinterpreter-safe.

An isolated interpreter refuses modules that don't declare support for it, since their static data is shared. A private
copy of the file has static data of its own, so that its `PyInit` function can be called right inside the interpreter.
Runs inside the shard's interpreter and needs the standard library only.
"""

from __future__ import annotations

import _imp
import contextlib
import ctypes
import importlib.machinery
import importlib.util
import os
import shutil
import signal
import sys
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from ..errors import ConfigError
from ..system.storage import writing

CURATED: Final[dict[str, str]] = {
    "_cffi_backend": "",
    "aiohttp": "",
    "cbor2": "",
    "frozenlist": "",
    "httptools": "",
    "msgpack": "",
    "msgspec": "",
    "numpy": "warns",
    "ormsgpack": "",
    "orjson": "",
    "propcache": "",
    "psutil": "",
    "pydantic_core": "",
    "regex": "",
    "sentencepiece": "",
    "tiktoken": "",
    "tokenizers": "",
    "uvloop": "signal",
    "yarl": "",
    "zmq": "",
}
"""Top-level packages known to run as images, and what is particular about each.

"signal": it must get no signal handling of its own. "warns": it warns of subinterpreters.
"""

_AT_END: Final = {"uvloop": "uv_library_shutdown"}
"""What a library keeps until the process ends (libuv: a pipe, threads), its copy must let go with its interpreter."""

_PYTHON_API_VERSION: Final = 1013


def select(images: str) -> tuple[str, ...]:
    """The packages that `--images auto|off|+name|-name[,…]` allows; raises ConfigError on another word."""
    chosen = set(CURATED)
    for word in filter(None, (part.strip() for part in images.split(","))):
        if word == "auto":
            chosen = set(CURATED)
        elif word == "off":
            chosen = set()
        elif word[0] == "+" and word[1:].isidentifier():
            chosen.add(word[1:])
        elif word[0] == "-" and word[1:].isidentifier():
            chosen.discard(word[1:])
        else:
            raise ConfigError(
                f"--images {images!r}: {word!r} is not auto, off, +name or -name.",
                hint="Names are top-level packages, for instance --images auto,-uvloop.",
            )
    return tuple(sorted(chosen))


_loaded: list[tuple[str, ctypes.PyDLL]] = []


def install(packages: Sequence[str], copies_dir: str) -> None:
    """Make this interpreter load the extension modules of `packages` as images; call before importing any of them."""
    sys.meta_path.insert(0, _ImageFinder(frozenset(packages), copies_dir))
    if any(CURATED.get(name) == "signal" for name in packages):
        # A shard can't own signals: the interpreter refuses both calls, and the gateway's main thread has them.
        signal.set_wakeup_fd = lambda fd, *, warn_on_full_buffer=True: -1
        signal.signal = lambda signum, handler: signal.SIG_DFL  # type: ignore[assignment]
    if any(CURATED.get(name) == "warns" for name in packages):
        warnings.filterwarnings("ignore", "NumPy was imported from a Python sub-interpreter", UserWarning)


def release() -> None:
    """Let the loaded copies free what outlives an interpreter; call last in it."""
    for package, library in _loaded:
        if package in _AT_END:
            getattr(library, _AT_END[package])()
    _loaded.clear()


class _ImageFinder:
    """Finds extension modules of the allowed packages, and leaves every other module to the next finder."""

    def __init__(self, packages: frozenset[str], copies_dir: str) -> None:
        self._packages = packages
        self._copies_dir = copies_dir

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name.partition(".")[0] not in self._packages:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is None or not isinstance(spec.loader, importlib.machinery.ExtensionFileLoader):
            return None
        return importlib.util.spec_from_file_location(
            name, spec.origin, loader=ImageLoader(name, str(spec.origin), self._copies_dir)
        )


class ImageLoader(importlib.machinery.ExtensionFileLoader):
    """Loads a private copy of one extension module."""

    def __init__(self, name: str, path: str, copies_dir: str) -> None:
        super().__init__(name, path)
        self._copies_dir = copies_dir
        self._definition: Any = None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        origin = str(spec.origin)
        _load_bundled_libraries(spec.name, origin)
        library = _load_copy(origin, self._copies_dir)
        _loaded.append((spec.name.partition(".")[0], library))
        init = getattr(library, f"PyInit_{spec.name.rpartition('.')[2]}")
        init.restype = ctypes.py_object
        made = init()
        if isinstance(made, ModuleType):
            return _adopt_single_phase(made, spec)
        # The definition is static memory of the copy, not an object to free when its last reference goes.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(made))
        self._definition = made
        from_def = ctypes.pythonapi.PyModule_FromDefAndSpec2
        from_def.restype = ctypes.py_object
        from_def.argtypes = [ctypes.py_object, ctypes.py_object, ctypes.c_int]
        with _unchecked():
            module: ModuleType = from_def(made, spec, _PYTHON_API_VERSION)
        return module

    def exec_module(self, module: ModuleType) -> None:
        if self._definition is None:
            return
        exec_def = ctypes.pythonapi.PyModule_ExecDef
        exec_def.restype = ctypes.c_int
        exec_def.argtypes = [ctypes.py_object, ctypes.py_object]
        # A module may make submodules of its own in here (pydantic_core does).
        with _unchecked():
            exec_def(module, self._definition)


@contextlib.contextmanager
def _unchecked() -> Iterator[None]:
    """The interpreter's own check is off for an image, and stays on for everything else."""
    before = _imp._override_multi_interp_extensions_check(-1)  # type: ignore[attr-defined]
    try:
        yield
    finally:
        _imp._override_multi_interp_extensions_check(before)  # type: ignore[attr-defined]


def _adopt_single_phase(module: ModuleType, spec: importlib.machinery.ModuleSpec) -> ModuleType:
    module.__name__ = spec.name
    get_def = ctypes.pythonapi.PyModule_GetDef
    get_def.restype = ctypes.c_void_p
    get_def.argtypes = [ctypes.py_object]
    definition = get_def(module)
    find = ctypes.pythonapi.PyState_FindModule
    find.restype = ctypes.c_void_p
    find.argtypes = [ctypes.c_void_p]
    if definition and not find(definition):
        add = ctypes.pythonapi.PyState_AddModule
        add.restype = ctypes.c_int
        add.argtypes = [ctypes.py_object, ctypes.c_void_p]
        add(module, definition)
    return module


def _load_copy(origin: str, copies_dir: str) -> ctypes.PyDLL:
    # Another path is another library to the dynamic linker; once loaded it needs no name any more.
    what = f"A copy of {Path(origin).name}, which a shard loads ({os.path.getsize(origin)} bytes),"
    with writing(what, copies_dir):
        handle, copy = tempfile.mkstemp(prefix=f"{Path(origin).name.partition('.')[0]}-", suffix=".so", dir=copies_dir)
        os.close(handle)
    try:
        with writing(what, copies_dir):
            shutil.copyfile(origin, copy)
        return ctypes.PyDLL(copy, mode=os.RTLD_NOW | os.RTLD_LOCAL)
    finally:
        os.unlink(copy)


def _load_bundled_libraries(name: str, origin: str) -> None:
    """Load, shared by all interpreters, what a copy would look for beside the original (`$ORIGIN` in its run path)."""
    package = name.partition(".")[0]
    root = next((parent for parent in Path(origin).parents if parent.name == package), None)
    if root is None:
        return
    pending = sorted((root.parent / f"{folder}.libs") for folder in {package, f"py{package}"})
    libraries = [path for folder in pending if folder.is_dir() for path in sorted(folder.iterdir())]
    # They may need each other, in an order that their names don't tell: go round until nothing more loads.
    while libraries:
        failed = []
        for path in libraries:
            try:
                ctypes.CDLL(str(path), mode=os.RTLD_NOW | os.RTLD_GLOBAL)
            except OSError:
                failed.append(path)
        if len(failed) == len(libraries):
            return
        libraries = failed
