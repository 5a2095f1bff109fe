"""Runs scenarios: brings up what is measured, takes turns among the variants, round after round."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Self

from ..engine.scripted.pace import Pace
from ..errors import ConfigError
from ..gateway.runtime import make_runtime_dir, remove_runtime_dir
from .load.prompts import Prompts
from .load.workload import Group, Workload
from .measure import Run, measure
from .probe import sample_event
from .results import Variant
from .scenarios import Scenario
from .targets.base import Floor, Target, writers
from .targets.gateways import GatewayHost, GatewayTarget
from .targets.servers import Remote, Stock


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchPlan:
    """What to measure, and how often; empty modes and shards are the scenario's."""

    engine: str = "sglang"
    """sglang: SGLang's router and detokenizer with a simulated scheduler; model: with its own; wire: no sglang."""
    modes: tuple[str, ...] = ()
    shards: tuple[int, ...] = ()
    gateways: bool = True
    against_sglang: bool = False
    against_rust: bool = False
    """SGLang's Rust server, with as many tokenizing and detokenizing threads."""
    sglang_pythons: tuple[str, ...] = ()
    """Others than this one whose SGLang's server is to be measured as well."""
    urls: tuple[str, ...] = ()
    rounds: int = 3
    floors: bool = True
    ungrouped: bool = False
    codec: str = "pickle"
    loop: str = "auto"
    engine_argv: tuple[str, ...] = ()
    pythons: tuple[str, ...] = ()
    """Others than this one to run gateways in, on a wire engine."""
    generators: int = 1


@dataclass(slots=True)
class Outcome:
    """One case of a scenario: what each variant showed."""

    scenario: Scenario
    case: str
    variants: list[Variant] = field(default_factory=list)

    @property
    def title(self) -> str:
        """The scenario's name, and the case's."""
        return f"{self.scenario.name}: {self.case}" if self.case else self.scenario.name


class Bench:
    """A context in which scenarios run; what is slow to start stays up between them."""

    def __init__(self, plan: BenchPlan, *, on_phase: Callable[[str], None]) -> None:
        self._plan = plan
        self._on_phase = on_phase
        self._stack = ExitStack()
        self._hosts: dict[tuple[str, bool, str], GatewayHost] = {}
        self._stocks: dict[tuple[bool, int, bool, str], Stock] = {}
        self.start_seconds: dict[str, float] = {}
        """Of engines and servers, until they were up."""

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._directory = make_runtime_dir()
            stack.callback(remove_runtime_dir, self._directory)
            self._pace = stack.enter_context(Pace(self._directory / "pace"))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    def run(self, scenario: Scenario, on_turn: Callable[[str, int, int], None]) -> list[Outcome]:
        """All cases and variants, in turn, as often as the plan says; `on_turn` hears what is next, of how many."""
        outcomes, turns = [], []
        for case in scenario.cases:
            targets = self._targets(scenario, case)
            variants = [Variant(target.name, target.mode, target.shards) for target in targets]
            outcomes.append(Outcome(scenario, case, variants))
            turns += [(outcomes[-1], target, variant) for target, variant in zip(targets, variants, strict=True)]
        total = len(turns) * self._plan.rounds
        for number in range(self._plan.rounds):
            for i, (outcome, target, variant) in enumerate(turns):
                on_turn(f"{outcome.title}, {target.name}", number * len(turns) + i, total)
                workload = scenario.cases[outcome.case]
                self._pace.seconds = workload.step_seconds
                background = [group.name for group in workload.groups if group.background]
                variant.add(self._measure(target, workload), background)
        return outcomes

    def _targets(self, scenario: Scenario, case: str) -> list[Target]:
        plan, targets = self._plan, list[Target]()
        ungrouped = plan.ungrouped or case in scenario.ungrouped
        kind = scenario.engine or plan.engine
        if (kind == "wire" or plan.pythons) and any(g.tokens_per_event > 1 for g in scenario.cases[case].groups):
            raise ConfigError(
                f"{scenario.name} has events of several tokens, and a wire engine sends each token by itself.",
                hint="--engine sglang gathers them.",
            )
        for shards in plan.shards or scenario.shards:
            for mode in plan.modes or scenario.modes if plan.gateways else ():
                config = {"mode": mode, "shards": shards, "loop": plan.loop}
                host = self._host(kind, ungrouped, sys.executable)
                targets.append(GatewayTarget(f"{mode}-{shards}", host, config))
            for python in plan.pythons:
                config = {"mode": "auto", "shards": shards, "loop": plan.loop}
                host = self._host("wire", ungrouped, python)
                targets.append(GatewayTarget(f"python{host.python}-{shards}", host, config))
            if plan.against_sglang and kind != "wire":
                targets.append(self._stock(ungrouped, shards, rust=False))
                targets += [self._stock(ungrouped, shards, rust=False, python=one) for one in plan.sglang_pythons]
            if plan.against_rust and kind != "wire":
                targets.append(self._stock(ungrouped, shards, rust=True))
        targets += [Remote(url, url) for url in plan.urls]
        if scenario.floors and plan.floors:
            pace, log = str(self._directory / "pace"), self._directory / "floor.log"
            event = self._event(targets[0], scenario.cases[case])
            targets += [Floor(f"floor-{writer}", writer, event, pace=pace, log=log) for writer in writers()]
        return targets

    def _host(self, kind: str, ungrouped: bool, python: str) -> GatewayHost:
        key = kind, ungrouped, python
        if key not in self._hosts:
            host = GatewayHost(self._settings(kind, ungrouped), log=self._directory / "host.log", python=python)
            self._stack.callback(host.close)
            host.start(self._on_phase)
            self.start_seconds[f"engine ({kind})"] = host.seconds
            self._hosts[key] = host
        return self._hosts[key]

    def _stock(self, ungrouped: bool, workers: int, *, rust: bool, python: str = sys.executable) -> Stock:
        key = ungrouped, workers, rust, python
        if key not in self._stocks:
            self._on_phase(f"starting SGLang's own {'Rust ' if rust else ''}server with {workers} workers")
            settings = self._settings(self._plan.engine, ungrouped)
            stock = Stock(settings, workers=workers, rust=rust, log=self._directory / "sglang.log", python=python)
            self._stack.callback(stock.end)
            stock.open()
            self.start_seconds[stock.name] = stock.start_seconds[0]
            self._stocks[key] = stock
        return self._stocks[key]

    def _settings(self, kind: str, ungrouped: bool) -> dict[str, Any]:
        return {
            "engine": "wire" if kind == "wire" else "sglang",
            "simulated": kind != "model",
            "argv": list(self._plan.engine_argv),
            "pace": str(self._directory / "pace"),
            "grouped": not ungrouped,
            "codec": self._plan.codec,
        }

    def _measure(self, target: Target, workload: Workload) -> Run:
        prompt = self._prompts(target).make
        return measure(target, workload, prompt, log_dir=self._directory, generators=self._plan.generators)

    def _prompts(self, target: Target) -> Prompts:
        """A tokenizer's, where the server's is known."""
        on_wire = isinstance(target, GatewayTarget) and target.on_wire
        foreign = isinstance(target, Remote | Floor)
        if on_wire:
            return Prompts.by_characters(1)
        return Prompts.by_characters() if foreign else Prompts.of_model(self._plan.engine_argv)

    def _event(self, target: Target, workload: Workload) -> str:
        """One event as a target sends it, for the bare writers to repeat."""
        self._pace.seconds = min(workload.step_seconds, 0.02)
        group = Group(format=workload.groups[0].format, max_tokens=64)
        target.open()
        try:
            return sample_event(target.address, group.request("Hello", target.model, "localhost"))
        finally:
            target.close()
