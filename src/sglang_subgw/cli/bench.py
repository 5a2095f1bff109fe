"""`python -m sglang_subgw bench`: measure, show, write down."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from ..bench.load.workload import FORMATS
from ..bench.progress import ProgressBar
from ..bench.report.table import render
from ..bench.report.write import write_report
from ..bench.runner import Bench, BenchPlan, Outcome
from ..bench.scenarios import SCENARIOS, Scenario, scenario
from ..bench.system import machine
from ..bench.targets.servers import sglang_version
from ..config import SHARD_MODES
from ..errors import ConfigError
from .parser import CommandParser
from .session import run

_EPILOG = """\
What is measured: processor time per event or request of each part (shards, main interpreter, SGLang's detokenizer and
scheduler, the load generator), times as clients see them, throughput, memory, start, balance. A simulated scheduler
takes the model's time out; router, detokenizer and everything in front of them are the real ones.

  bench chat-64 --against sglang          SGLang's own server beside it, in the same run
  bench saturate --modes subinterp,process,thread --shards 1,2
  bench short long-prompt --out results   results.json and a page with charts
  bench chat-64 --url http://127.0.0.1:8000   whatever runs there
"""
_OTHERS: Final = ("sglang", "sglang-rust")
_BOUND_TOKENS: Final = 512
"""Of answers of a model of one's own, which has room for so many."""


def bench(argv: Sequence[str]) -> int:
    """Run scenarios, print and write their results; returns 0."""
    options = _parser().parse_args(argv)
    if options.list:
        width = max(map(len, SCENARIOS))
        print("\n".join(f"{one.name:<{width}}  {one.about}" for one in SCENARIOS.values()))
        return 0
    plan, chosen = _plan(options), _scenarios(options)
    return run("warning", lambda _: _bench(plan, chosen, options.out))


def _bench(plan: BenchPlan, chosen: Sequence[Scenario], directory: str | None) -> int:
    about = machine.describe()
    print(machine.line(about), flush=True)
    results: list[tuple[Scenario, list[Outcome]]] = []
    page = None
    with ProgressBar() as bar, Bench(plan, on_phase=bar.phase) as running:
        for one in chosen:
            outcomes = running.run(one, bar.turn)
            bar.clear()
            print(render(one, outcomes), flush=True)
            results.append((one, outcomes))
            if directory:
                # After each: a later one may fail.
                page = write_report(Path(directory), about, running.start_seconds, results)
    if page is not None:
        print(f"\nWritten: {page}")
    return 0


def _plan(options: argparse.Namespace) -> BenchPlan:
    engine = options.engine or ("sglang" if find_spec("sglang") else "wire")
    if engine != "wire" and find_spec("sglang") is None:
        raise ConfigError(f"--engine {engine} needs SGLang, which isn't installed.", hint="--engine wire does not.")
    against = options.against or []
    unknown = [one for one in against if one not in _OTHERS and "://" not in one]
    if unknown:
        raise ConfigError(f"--against takes {', '.join(_OTHERS)} or a URL, not {unknown[0]!r}.")
    if options.sglang_python and "sglang" not in against:
        raise ConfigError("--sglang-python says which other SGLang to measure.", hint="It needs --against sglang.")
    for python in options.sglang_python or ():
        # Now, not after the half minute that an engine takes to start.
        sglang_version(python)
    return BenchPlan(
        engine=engine,
        modes=_choices("--modes", options.modes, [mode.value for mode in SHARD_MODES]),
        shards=tuple(_number("--shards", part) for part in options.shards.split(",")) if options.shards else (),
        gateways=not options.url,
        against_sglang="sglang" in against,
        against_rust="sglang-rust" in against,
        urls=(*([options.url] if options.url else []), *(one for one in against if one not in _OTHERS)),
        rounds=options.rounds,
        floors=not options.no_floor,
        ungrouped=options.ungrouped,
        codec=options.codec,
        loop=options.loop,
        engine_argv=("--model-path", options.model_path) if options.model_path else (),
        pythons=tuple(options.python or ()),
        sglang_pythons=tuple(options.sglang_python or ()),
        generators=options.generators,
    )


def _scenarios(options: argparse.Namespace) -> list[Scenario]:
    if not options.scenario:
        raise ConfigError("No scenario is named.", hint=f"There are {', '.join(SCENARIOS)}; --list says what they are.")
    changes: dict[str, Any] = {
        "connections": options.streams,
        "format": options.format,
        "prompt_tokens": options.prompt_tokens,
        "max_tokens": options.max_tokens,
        "seconds": options.seconds,
        "warm_seconds": options.warm,
        "step_seconds": None if options.rate is None else 1 / options.rate if options.rate else 0.0,
    }
    changes = {name: value for name, value in changes.items() if value is not None}
    chosen = [scenario(name).changed(**changes) for name in options.scenario]
    if options.engine == "model" or options.url or any("://" in one for one in options.against or ()):
        chosen = [one.bounded(options.max_tokens or _BOUND_TOKENS) for one in chosen]
    return chosen


def _choices(option: str, text: str | None, choices: Sequence[str]) -> tuple[str, ...]:
    parts = tuple(text.split(",")) if text else ()
    for part in parts:
        if part not in choices:
            raise ConfigError(f"{option} takes some of {', '.join(choices)}, not {part!r}.")
    return parts


def _number(option: str, text: str) -> int:
    if not text.isdigit() or not int(text):
        raise ConfigError(f"{option} takes numbers above 0, not {text!r}.")
    return int(text)


def _parser() -> CommandParser:
    parser = CommandParser(
        prog="python -m sglang_subgw bench",
        description="Measure this gateway, with the model's time taken out, and others beside it in the same run.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("scenario", nargs="*", metavar="SCENARIO", help="what to run; --list names them")
    add("--list", action="store_true", help="the scenarios")
    add("--modes", metavar="LIST", help="modes of this gateway, for instance subinterp,process")
    add("--shards", metavar="LIST", help="numbers of shards, for instance 1,2")
    add(
        "--against",
        action="append",
        metavar="WHAT",
        help="sglang, sglang-rust (its own servers, with as many workers), or a URL",
    )
    add(
        "--sglang-python",
        action="append",
        metavar="PATH",
        help="with --against sglang: a Python with another SGLang, whose server is measured as well",
    )
    add("--url", help="measure what runs there instead of gateways of its own")
    add(
        "--engine", choices=("sglang", "model", "wire"), help="SGLang without a model (default), with one, or no SGLang"
    )
    add(
        "--model-path", metavar="DIR", help="whose tokenizer is used, or what --engine model serves (default: the demo)"
    )
    add("--python", action="append", metavar="PATH", help="a gateway that this Python runs, on a wire engine, as well")
    add("--rounds", type=int, default=3, help="how often every variant has its turn (default %(default)s)")
    add("--seconds", type=float, help="how long each turn is measured")
    add("--warm", type=float, metavar="S", help="how long the load runs before that")
    add("--streams", type=int, metavar="N", help="connections of the measured group")
    add("--rate", type=float, help="tokens a second of each stream, 0 for as fast as it goes")
    add("--format", choices=FORMATS[:-1], help="of the measured requests")
    add("--prompt-tokens", type=int, metavar="N", help="of the measured requests")
    add("--max-tokens", type=int, metavar="N", help="of the measured requests")
    add("--ungrouped", action="store_true", help="one message per token to a worker, as SGLang to 0.5.22")
    add("--codec", default="pickle", choices=("pickle", "msgpack"), help="SGLang's wire (default %(default)s)")
    add("--loop", default="auto", choices=("auto", "uvloop", "asyncio"), help="event loop of a shard")
    add("--generators", type=int, default=1, metavar="N", help="load generators, a process each (default %(default)s)")
    add("--no-floor", action="store_true", help="without the bare writers")
    add("--out", metavar="DIR", help="write results.json and index.html there")
    return parser
