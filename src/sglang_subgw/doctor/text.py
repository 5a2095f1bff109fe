"""The report for people."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from .gateways import RunningGateway
from .leftovers import Leftover
from .limits import Limit
from .report import DoctorReport


def render(report: DoctorReport) -> str:
    """The whole report as text."""
    return "\n".join(_lines(report))


def _lines(report: DoctorReport) -> Iterator[str]:
    python, versions = report.python, report.versions
    build = ", a free-threaded build" if python["free_threaded_build"] else ""
    yield f"sglang-subgw {versions['sglang_subgw']}, SGLang {versions['sglang'] or 'not installed (attach only)'}"
    yield f"{python['implementation']} {python['version']}{build}, GIL {python['gil']}: {python['executable']}"
    yield from _modules(report)
    yield from _mode(report)
    yield from _section("Limits", (_limit(limit) for limit in report.limits))
    yield from _section("Left behind by dead owners", (_leftover(one) for one in report.leftovers))
    yield from _section("Removed", (_leftover(one) for one in report.removed))
    yield from _section("Running", (line for gateway in report.gateways for line in _gateway(gateway)))
    yield ""
    problems = report.problems
    yield f"Not healthy, {len(problems)} to see to:" if problems else "Healthy."
    yield from (f"  {problem}" for problem in problems)


def _modules(report: DoctorReport) -> Iterator[str]:
    head = ("module", "version", "in a shard", "for")
    rows = [(m["name"], m["version"] or "-", m["status"], m["needed_by"]) for m in report.modules]
    table = _table([head, *rows])
    details = ["", *(m["detail"] for m in report.modules)]
    yield ""
    yield from (f"{line}  {detail}".rstrip() for line, detail in zip(table, details, strict=True))


def _mode(report: DoctorReport) -> Iterator[str]:
    mode = report.mode
    yield ""
    if mode["picked"] is None:
        yield f"Mode {mode['asked']}: can't run"
    else:
        asked = f"{mode['asked']} is " if mode["asked"] != mode["picked"] else ""
        yield f"Mode {asked}{mode['picked']}: {mode['warning'] or mode['reason']}"


def _limit(limit: Limit) -> str:
    values = ", ".join(f"{name} {_number(name, value)}" for name, value in limit.values.items())
    remark = limit.problem or limit.note
    return f"{limit.name:<14} {values}" + (f"  ({remark})" if remark else "")


def _number(name: str, value: int) -> str:
    if name in ("size", "free"):
        return f"{value / 2**20:.0f} MiB"
    return "unlimited" if value < 0 else str(value)


def _leftover(leftover: Leftover) -> str:
    sockets = f", {leftover.sockets} sockets" if leftover.sockets else ""
    return f"{leftover.kind:<14} {leftover.path} ({leftover.bytes} bytes{sockets})"


def _gateway(gateway: RunningGateway) -> Iterator[str]:
    what = f"{len(gateway.shards)} shards" if gateway.shards else "an engine for gateways to attach to"
    reason = f" ({gateway.reason})" if gateway.reason else ""
    model = f"{gateway.model} on SGLang {gateway.sglang_version}"
    yield f"pid {gateway.pid}  {gateway.state}{reason}, {model}, {what}, segment {gateway.segment}"
    if gateway.shards:
        head = ("shard", "state", "heartbeat", "requests now", "connections", "requests", "failed", "restarts")
        rows = [
            (
                str(shard.index),
                shard.state,
                "-" if shard.heartbeat_age is None else f"{shard.heartbeat_age:.1f} s ago",
                str(shard.requests_now),
                str(shard.connections),
                str(shard.requests),
                str(shard.failed),
                str(shard.restarts),
            )
            for shard in gateway.shards
        ]
        yield from (f"  {line}" for line in _table([head, *rows]))
        failures = [shard for shard in gateway.shards if shard.last_failure]
        yield from (f"  shard {shard.index} last failed: {shard.last_failure}" for shard in failures)


def _section(title: str, lines: Iterable[str]) -> Iterator[str]:
    found = list(lines)
    if found:
        yield ""
        yield title
        yield from (f"  {line}" for line in found)


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
