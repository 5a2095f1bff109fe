"""The probe: what a shard and the user's application import, tried in a scratch process before anything is served."""

from __future__ import annotations

import functools
import importlib.metadata
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from ..contract import process_start_time
from ..system.storage import temporary_directory
from . import images
from .trail import OPTIONAL, Account

_SHARD_PACKAGES: Final = frozenset(OPTIONAL)
_SAID_BYTES: Final = 400


class Status(StrEnum):
    """How a package with extension modules gets on in a shard."""

    NATIVE = "native"
    IMAGE = "image"
    FALLBACK = "fallback"
    """It loads, but without its extension module, which refused: pure Python, often much slower."""
    REFUSED = "refused"
    MISSING = "missing"
    CRASHED = "crashed"


@dataclass(frozen=True, slots=True)
class Module:
    """One package that the shard or the application needs."""

    name: str
    status: Status
    needed_by: str
    """"shard" or "app"."""
    detail: str = ""

    @property
    def version(self) -> str:
        """The version of its distribution, "" if it has none."""
        return version_of(self.name)


@dataclass(frozen=True, slots=True)
class ProbeReport:
    """What a probe found."""

    isolated: bool
    """Tried in interpreters with their own GIL; else in an ordinary process."""
    modules: tuple[Module, ...] = ()
    failure: str = ""
    """Why a shard can't run like this, with the module's name; "" if it can."""
    wrong_app: str = ""
    """What is wrong with the application's name or with a library, wherever it is imported."""
    gil: str = ""
    """The module after which there was a GIL."""
    seconds: float = 0.0

    @property
    def unsafe(self) -> tuple[Module, ...]:
        """The packages that are not, or not wholly, there: refused, or in pure Python."""
        return tuple(m for m in self.modules if m.status in (Status.REFUSED, Status.FALLBACK, Status.CRASHED))


def probe(app: str, image_words: str, *, isolated: bool, serve: str = "", timeout: float = 60.0) -> ProbeReport:
    """Import it all, in interpreters (`isolated`) or plainly, in a scratch process that may crash or hang."""
    started = time.monotonic()
    packages = images.select(image_words)
    # Named as a gateway's own directory is, so that what is left of a killed process is swept like that.
    prefix = f"subgw-{os.getpid()}-{process_start_time(os.getpid()) or 0}-"
    with temporary_directory(prefix) as scratch:
        trail, said = Path(scratch, "trail"), Path(scratch, "said")
        with trail.open("wb") as trail_file, said.open("wb") as said_file:
            spec = {
                "app": app,
                "copies_dir": scratch,
                "isolated": isolated,
                "packages": packages,
                "serve": serve,
                "timeout": timeout,
                "trail": trail_file.fileno(),
            }
            path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
            child = subprocess.Popen(
                [sys.executable, "-P", "-m", "sglang_subgw.modes.probe_child", json.dumps(spec)],
                env={**os.environ, "PYTHONPATH": path},
                pass_fds=(trail_file.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=said_file,
                stderr=said_file,
            )
            try:
                status: int | None = child.wait(timeout)
            except subprocess.TimeoutExpired:
                status = None
            finally:
                child.kill()
                child.wait()
        account = Account.read(trail)
        last_words = said.read_bytes()[-_SAID_BYTES:].decode(errors="replace").strip().rpartition("\n")[2]
    crashed = account.importing[-1] if account.importing and account.stage != "done" else ""
    return ProbeReport(
        isolated=isolated,
        modules=_modules(account, crashed if status is not None else ""),
        failure=_failure(account, status, crashed, last_words, timeout),
        wrong_app=account.error if account.error_is_ours else "",
        gil=account.gil,
        seconds=time.monotonic() - started,
    )


def _failure(account: Account, status: int | None, crashed: str, last_words: str, timeout: float) -> str:
    at = f"while it imported {crashed}" if crashed else f"in its stage {account.stage}"
    if status is None:
        return f"It was not through within {timeout:g} s, {at}."
    if account.error:
        refused = [name for name, (how, _) in account.extensions.items() if how == "refused"]
        return f"{refused[-1]} is refused: {account.error}." if refused else f"{account.error.rstrip('.')}."
    if account.stage == "done":
        return ""
    how = f"exit status {status}"
    if status < 0:
        how = signal.Signals(-status).name if -status in set(signal.Signals) else f"signal {-status}"
    if account.stage == "close":
        at = "when its interpreters were closed"
    return f"It crashed ({how}) {at}" + (f": {last_words}" if last_words else ".")


def _modules(account: Account, crashed: str) -> tuple[Module, ...]:
    found: dict[str, Module] = {}
    for extension, (how, error) in account.extensions.items():
        name = extension.partition(".")[0]
        if name in sys.stdlib_module_names and how == "native":
            continue
        needed_by = _needed_by(account, extension)
        if how == "refused" and needed_by == "shard" and name not in _SHARD_PACKAGES:
            # What a shard's libraries try and do without, like uvicorn the reloader's watchfiles.
            continue
        status = Status(how)
        if status is Status.REFUSED and name in account.packages:
            status = Status.FALLBACK
        known = found.get(name)
        if known is None or _SEVERITY.index(status) > _SEVERITY.index(known.status):
            needed_by = known.needed_by if known else needed_by
            found[name] = Module(name, status, needed_by, f"{extension}: {error}" if error else "")
    for name in account.missing:
        found.setdefault(name, Module(name, Status.MISSING, "shard"))
    if crashed:
        name = crashed.partition(".")[0]
        found[name] = Module(name, Status.CRASHED, "app" if account.stage == "app" else "shard", crashed)
    return tuple(sorted(found.values(), key=lambda m: (m.needed_by != "shard", m.name)))


_SEVERITY: Final = (Status.NATIVE, Status.IMAGE, Status.FALLBACK, Status.REFUSED)


def _needed_by(account: Account, extension: str) -> str:
    return "shard" if account.wanted_by[extension] == "shard" else "app"


def version_of(package: str) -> str:
    """The installed version of the distribution that `package` is part of, "" if there is none."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        names = _distributions().get(package)
        return importlib.metadata.version(names[0]) if names else ""


@functools.cache
def _distributions() -> dict[str, list[str]]:
    return dict(importlib.metadata.packages_distributions())
