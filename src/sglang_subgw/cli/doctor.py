"""`python -m sglang_subgw doctor`: a report for people or tools, and its verdict as the exit status."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Sequence

from ..config import GatewayConfig, Mode
from ..doctor import DoctorReport, examine, render
from .mode import importable
from .parser import CommandParser


def doctor(argv: Sequence[str]) -> int:
    """Print the report; returns 0 for healthy, 1 for not."""
    options = _parser().parse_args(argv)
    # The report says what a log line would.
    logging.getLogger("sglang_subgw").setLevel(logging.CRITICAL)
    config = GatewayConfig(mode=options.mode, app=options.app, serve=options.serve, images=options.images)
    importable(config)
    report = examine(config, options.target)
    if options.fix:
        report.fix()
    elif report.leftovers and not options.json and sys.stdin.isatty() and sys.stdout.isatty():
        _offer(report)
    print(json.dumps(report.to_dict(), indent=2) if options.json else render(report))
    return 1 if report.problems else 0


def _offer(report: DoctorReport) -> None:
    for leftover in report.leftovers:
        print(f"{leftover.kind} of a dead owner: {leftover.path}")
    if input("Remove? [y/N] ").strip().lower() in ("y", "yes"):
        report.fix()


def _parser() -> CommandParser:
    default = GatewayConfig()
    parser = CommandParser(
        prog="python -m sglang_subgw doctor",
        description="Say what is right and wrong here; exit status 0 for healthy, 1 for not.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add(
        "target", nargs="?", default="", metavar="PID|NAME|URL", help="look at this gateway only (default all of yours)"
    )
    add("--json", action="store_true", help="the same data for tools")
    add("--fix", action="store_true", help="remove what dead owners left behind; on a terminal it is asked for")
    add("--mode", default=default.mode.value, choices=[mode.value for mode in Mode], help="the mode to look into")
    add("--app", default=default.app, metavar="MODULE:ATTR", help="the application to look into")
    add("--serve", default=default.serve, metavar="MODULE:ATTR", help="the coroutine function to look into")
    add("--images", default=default.images, metavar="LIST", help="extension images: auto, off, +name, -name")
    return parser
