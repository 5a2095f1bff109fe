"""The whole report as plain data: what `--json` prints, and what the text is made of."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import platform
import sys
from dataclasses import dataclass, field
from typing import Any, Final

from ..config import GatewayConfig
from ..errors import ConfigError, ModeUnavailable
from ..modes import probe
from ..modes.choose import Choice, choose
from ..modes.gil import free_threaded_build
from ..modes.trail import gil_enabled
from .gateways import RunningGateway, gateways
from .leftovers import Leftover, leftovers
from .limits import Limit, limits

_PURE_PYTHON: Final = ("jinja2", "uvicorn")


@dataclass(slots=True)
class DoctorReport:
    """What was found."""

    python: dict[str, Any]
    versions: dict[str, str]
    """Of this package and of sglang; "" for one that isn't installed."""
    modules: list[dict[str, str]]
    mode: dict[str, Any]
    limits: list[Limit]
    leftovers: list[Leftover]
    gateways: list[RunningGateway]
    removed: list[Leftover] = field(default_factory=list)

    @property
    def problems(self) -> list[str]:
        """Why it isn't healthy; empty if it is."""
        found = [self.mode["problem"]] if self.mode["problem"] else []
        found += [f"{limit.name}: {limit.problem}" for limit in self.limits if limit.problem]
        if self.leftovers:
            count = len(self.leftovers)
            things = "1 thing is" if count == 1 else f"{count} things are"
            found.append(f"{things} left behind by dead owners; --fix removes that, and so does the next start.")
        for gateway in self.gateways:
            found += gateway.problems
        return found

    def fix(self) -> None:
        """Remove what dead owners left."""
        self.removed = [leftover for leftover in self.leftovers if leftover.remove()]
        self.leftovers = [leftover for leftover in self.leftovers if leftover not in self.removed]

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "healthy": not self.problems,
            "problems": self.problems,
            **{f.name: _plain(getattr(self, f.name)) for f in dataclasses.fields(self)},
        }


def examine(config: GatewayConfig, target: str = "") -> DoctorReport:
    """Look at everything; raises ContractError for a target that isn't there."""
    running = gateways(target)
    report, mode = _mode(config)
    return DoctorReport(
        python={
            "version": platform.python_version(),
            "implementation": platform.python_implementation(),
            "executable": sys.executable,
            "free_threaded_build": free_threaded_build(),
            "gil": "on" if gil_enabled() else "off",
        },
        versions={"sglang_subgw": _version("sglang-subgw"), "sglang": _version("sglang")},
        modules=_modules(report),
        mode=mode,
        limits=limits(),
        leftovers=leftovers(),
        gateways=running,
    )


def _mode(config: GatewayConfig) -> tuple[probe.ProbeReport | None, dict[str, Any]]:
    choice: Choice | None = None
    problem = ""
    try:
        choice = choose(config)
    except (ModeUnavailable, ConfigError) as exc:
        problem = str(exc)
    report = choice.report if choice is not None else None
    if report is None:
        # What was asked for needs no probe, or can't be: the modules are told all the same.
        report = probe.probe(config.app, config.images, serve=config.serve, isolated=not free_threaded_build())
    return report, {
        "asked": str(config.mode),
        "picked": str(choice.mode) if choice is not None else None,
        "reason": choice.reason if choice is not None else "",
        "warning": choice.warning if choice is not None else "",
        "app": config.app,
        "serve": config.serve,
        "images": config.images,
        "probe_seconds": round(report.seconds, 3),
        "problem": problem or report.wrong_app,
    }


def _modules(report: probe.ProbeReport | None) -> list[dict[str, str]]:
    rows = [
        {
            "name": name,
            "version": version,
            "status": "python" if version else "missing",
            "needed_by": "shard",
            "detail": "",
        }
        for name in _PURE_PYTHON
        for version in [_version(name)]
    ]
    rows += [
        {
            "name": module.name,
            "version": module.version,
            "status": str(module.status),
            "needed_by": module.needed_by,
            "detail": module.detail,
        }
        for module in (report.modules if report is not None else ())
    ]
    return sorted(rows, key=lambda row: (row["needed_by"] != "shard", row["name"]))


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(one) for one in value]
    if isinstance(value, Leftover):
        return {**dataclasses.asdict(value), "path": str(value.path)}
    return dataclasses.asdict(value) if dataclasses.is_dataclass(value) and not isinstance(value, type) else value
