"""`python -m sglang_subgw bench`: measure, show, write down."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from ..cli.parser import CommandParser
from ..cli.progress import Progress
from ..errors import ConfigError
from . import machine
from .runner import Bench, Plan
from .scenarios import SCENARIOS, scenario
from .table import render


def bench(argv: Sequence[str]) -> int:
    """Run scenarios and print their results; returns 0."""
    parser = _parser()
    options = parser.parse_args(argv)
    if options.list:
        width = max(map(len, SCENARIOS))
        for one in SCENARIOS.values():
            print(f"{one.name:<{width}}  {one.about}")
        return 0
    if not options.scenario:
        raise ConfigError("No scenario is named.", hint=f"There are {', '.join(SCENARIOS)}; --list says what they are.")
    chosen = [scenario(name) for name in options.scenario]
    plan = Plan(
        modes=tuple(options.modes.split(",")) if options.modes else chosen[0].modes,
        shards=tuple(map(int, options.shards.split(","))) if options.shards else chosen[0].shards,
        rounds=options.rounds,
        against_sglang=options.against == "sglang",
        floors=True,
        grouped=not options.ungrouped,
        codec=options.codec,
        engine_argv=("--model-path", options.model_path) if options.model_path else (),
        loop=options.loop,
    )
    about = machine.describe()
    print(machine.line(about))
    with Progress(sys.stderr) as progress, Bench(plan, on_phase=progress.phase) as running:
        for one in chosen:
            outcome = running.run(one, one.workload, progress.phase)
            print(render(outcome), flush=True)
    return 0


def _parser() -> CommandParser:
    parser = CommandParser(
        prog="python -m sglang_subgw bench",
        description="Measure this gateway, with the model's time taken out, and others beside it in the same run.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("scenario", nargs="*", metavar="SCENARIO", help="what to run; --list names them")
    add("--list", action="store_true", help="the scenarios")
    add("--modes", metavar="LIST", help="modes of this gateway, for instance subinterp,process")
    add("--shards", metavar="LIST", help="numbers of shards, for instance 1,2")
    add("--against", metavar="sglang", help="beside it, in the same run: SGLang's own server with as many workers")
    add("--rounds", type=int, default=3, help="how often every variant has its turn (default %(default)s)")
    add("--ungrouped", action="store_true", help="one message per token to a worker, as SGLang to 0.5.22")
    add("--codec", default="pickle", choices=("pickle", "msgpack"), help="SGLang's wire (default %(default)s)")
    add("--model-path", metavar="DIR", help="whose tokenizer is used (default: the demo model's)")
    add("--loop", default="auto", choices=("auto", "uvloop", "asyncio"), help="event loop of a shard")
    return parser
