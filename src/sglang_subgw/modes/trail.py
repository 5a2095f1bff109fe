"""What a scratch process leaves of its imports, line by line in a file, so that a crash can't take it along.

The child's side writes from inside the interpreter under test and needs the standard library only.
"""

from __future__ import annotations

import importlib.machinery
import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from . import images

OPTIONAL: Final = ("httptools", "msgspec", "tokenizers", "uvloop")
"""What a shard uses where it loads, and does without where it doesn't."""


class Trail:
    """The writing side: one small write per event, straight to the kernel."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def __call__(self, event: str, name: str = "", detail: str = "") -> None:
        os.write(self._fd, json.dumps([event, name, detail]).encode() + b"\n")

    def follow_imports(self) -> None:
        """From now on every import leaves its beginning and end here, and an extension module how it went."""
        self._wrap(images.ImageLoader, "create_module", self._created("image"))
        self._wrap(importlib.machinery.ExtensionFileLoader, "create_module", self._created("native"))
        self._wrap(images.ImageLoader, "exec_module", self._executed("image"))
        self._wrap(importlib.machinery.ExtensionFileLoader, "exec_module", self._executed("native"))
        self._wrap(importlib.machinery.SourceFileLoader, "exec_module", self._source)

    @staticmethod
    def _wrap(loader: type, method: str, wrapper: Callable[..., Any]) -> None:
        original = getattr(loader, method)
        setattr(loader, method, lambda self, what: wrapper(original, self, what))

    def _created(self, how: str) -> Callable[..., Any]:
        def create(original: Callable[..., Any], loader: Any, spec: Any) -> Any:
            self("begin", spec.name)
            try:
                return original(loader, spec)
            except BaseException as exc:
                self("refused", spec.name, str(exc))
                self("end", spec.name, "failed")
                raise

        return create

    def _executed(self, how: str) -> Callable[..., Any]:
        def execute(original: Callable[..., Any], loader: Any, module: Any) -> None:
            name = module.__name__
            try:
                original(loader, module)
            except BaseException as exc:
                self("refused", name, str(exc))
                self("end", name, "failed")
                raise
            self(how, name)
            if gil_enabled():
                self("gil", name)
            self("end", name)

        return execute

    def _source(self, original: Callable[..., Any], loader: Any, module: Any) -> None:
        name = module.__name__
        self("begin", name)
        try:
            original(loader, module)
        except BaseException:
            self("end", name, "failed")
            raise
        self("end", name)


@dataclass(slots=True)
class Account:
    """The reading side: what the lines say, up to the last that was written."""

    stage: str = "start"
    """What the process was at: start, shard, app, close, done."""
    importing: list[str] = field(default_factory=list)
    """The imports that were under way at the end, innermost last: where a crash was."""
    extensions: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Extension module: native, image or refused, and the error."""
    wanted_by: dict[str, str] = field(default_factory=dict)
    """Extension module: the stage that loaded it first, or that was refused it last."""
    packages: set[str] = field(default_factory=set)
    """Top-level packages that were imported, with or without their extension modules."""
    missing: list[str] = field(default_factory=list)
    """Optional packages of a shard that it does without."""
    gil: str = ""
    """The first extension module after which there was a GIL: on a free-threaded build the one that turned it on."""
    error: str = ""
    """The Python error that ended a stage."""
    error_is_ours: bool = False
    """It is one that says by itself what is wrong: the same wherever the application is imported."""

    @classmethod
    def read(cls, path: Path) -> Account:
        """Read a trail; a line that was cut off is left out."""
        account = cls()
        for line in path.read_text(errors="replace").splitlines():
            try:
                event, name, detail = json.loads(line)
            except ValueError:
                break
            account._add(event, name, detail)
        return account

    def _add(self, event: str, name: str, detail: str) -> None:
        match event:
            case "stage":
                self.stage = name
                self.importing.clear()
            case "begin":
                self.importing.append(name)
            case "end":
                if name in self.importing:
                    del self.importing[self.importing.index(name) :]
                if not detail and "." not in name:
                    self.packages.add(name)
            case "native" | "image" | "refused":
                self.extensions[name] = (event, detail)
                if event == "refused":
                    self.wanted_by[name] = self.stage
                else:
                    self.wanted_by.setdefault(name, self.stage)
            case "missing":
                self.missing.append(name)
            case "gil":
                self.gil = self.gil or name
            case "error" | "config_error":
                self.error = detail
                self.error_is_ours = event == "config_error"


def gil_enabled() -> bool:
    """Whether this process has a GIL now: always on an ordinary build."""
    enabled: Callable[[], bool] = getattr(sys, "_is_gil_enabled", lambda: True)
    return enabled()
