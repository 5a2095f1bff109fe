"""The choice of the mode: what `auto` picks and why, and whether the mode that was asked for can run."""

from __future__ import annotations

import dataclasses
import logging
from dataclasses import dataclass

from ..config import Fallback, GatewayConfig, Mode
from ..errors import ConfigError, ModeUnavailable
from . import gil, images
from .gil import free_threaded_build
from .probe import ProbeReport, Status, probe
from .trail import gil_enabled

log = logging.getLogger("sglang_subgw.modes")

_CURATED_IMAGES = "auto"


@dataclass(frozen=True, slots=True)
class Choice:
    """The mode that shards start in, and why."""

    mode: Mode
    reason: str
    report: ProbeReport | None = None
    """What the probe found, if one was needed."""
    warning: str = ""
    """What the user should know of the mode."""

    def apply(self, config: GatewayConfig) -> GatewayConfig:
        """The configuration with this mode in it; says the choice in one line of the log."""
        if self.warning:
            log.warning("Mode %s: %s", self.mode, self.warning)
        elif config.mode is Mode.AUTO:
            log.info("Mode %s: %s", self.mode, self.reason)
        return dataclasses.replace(config, mode=self.mode)


def choose(config: GatewayConfig) -> Choice:
    """Settle the mode; raises ModeUnavailable with the module's name, ConfigError for an application that isn't one."""
    images.select(config.images)
    match config.mode:
        case Mode.AUTO:
            return _auto(config)
        case Mode.SUBINTERP:
            return _subinterp(config)
        case Mode.THREAD:
            return _thread(config)
        case _:
            return Choice(Mode.PROCESS, "it was asked for", _plain(config) if config.user_code else None)


def _auto(config: GatewayConfig) -> Choice:
    if free_threaded_build():
        report = _plain(config)
        if not (culprit := _gil_culprit(report)):
            return Choice(Mode.THREAD, "the GIL is off, also after all imports.", report)
        reason = f"this build can do without a GIL, but {culprit}."
        return Choice(Mode.PROCESS, reason, report, warning=reason)
    try:
        report = _isolated(config)
    except ModeUnavailable as exc:
        return Choice(Mode.PROCESS, str(exc), _plain(config) if config.user_code else None, warning=str(exc))
    if not (reason := _obstacle(report)):
        count = sum(module.status is Status.IMAGE for module in report.modules)
        reason = f"every extension module loads in an interpreter of its own, {count} packages as images."
        return Choice(Mode.SUBINTERP, reason, report)
    # What can't run in any mode is told as that.
    _plain(config)
    reason = f"subinterpreters can't be used: {reason}"
    return Choice(Mode.PROCESS, reason, report, warning=reason)


def _subinterp(config: GatewayConfig) -> Choice:
    # Without the module there is no mode; its error says why, or what to install.
    from . import interpreters  # noqa: F401

    if not config.user_code and config.images == _CURATED_IMAGES:
        # Every release is tested with just this set.
        return Choice(Mode.SUBINTERP, "it was asked for")
    report = _isolated(config)
    if not report.failure:
        slow = ", ".join(module.name for module in report.unsafe)
        warning = f"without their extension modules, which subinterpreters refuse: {slow}." if slow else ""
        return Choice(Mode.SUBINTERP, "it was asked for", report, warning=warning)
    _plain(config)
    if config.fallback is Fallback.PROCESS:
        reason = f"in place of subinterp, which can't be used: {report.failure}"
        return Choice(Mode.PROCESS, reason, report, warning=reason)
    raise ModeUnavailable(
        f"Mode subinterp can't be used: {report.failure}",
        hint="--mode auto or process serves it in child processes, and so does --fallback process.",
    )


def _thread(config: GatewayConfig) -> Choice:
    report = _plain(config) if config.user_code else None
    if not free_threaded_build():
        return Choice(
            Mode.THREAD,
            "it was asked for",
            report,
            warning="this Python has a GIL, which all shards share: good for comparison, not for speed.",
        )
    # The application was tried elsewhere first; a shard's own modules are imported here in any case.
    gil.require_off(_import_shard)
    if culprit := _gil_culprit(report):
        raise ModeUnavailable(
            f"Mode thread needs the GIL off, and {culprit}.", hint="--mode auto or process serves all the same."
        )
    return Choice(Mode.THREAD, "it was asked for", report)


def _import_shard() -> None:
    from ..shard import entry  # noqa: F401


def _obstacle(report: ProbeReport) -> str:
    if report.failure:
        return report.failure
    return "; ".join(f"{module.name} ({module.status}): {module.detail}" for module in report.unsafe)


def _isolated(config: GatewayConfig) -> ProbeReport:
    from . import interpreters  # noqa: F401

    return _checked(_probed(config, isolated=True))


def _plain(config: GatewayConfig) -> ProbeReport:
    report = _checked(_probed(config, isolated=False))
    if report.failure:
        raise ConfigError(f"{config.user_code or "A shard's own modules"} can't be imported: {report.failure}")
    return report


def _probed(config: GatewayConfig, *, isolated: bool) -> ProbeReport:
    timeout = config.start_timeout_seconds
    return probe(config.app, config.images, serve=config.serve, isolated=isolated, timeout=timeout)


def _checked(report: ProbeReport) -> ProbeReport:
    if report.wrong_app:
        raise ConfigError(report.wrong_app)
    return report


def _gil_culprit(report: ProbeReport | None) -> str:
    if report is not None and report.gil:
        return f"{report.gil} turned the GIL on"
    return "the GIL is on in this process" if gil_enabled() else ""
