"""Runs scenarios: brings up what is measured, takes turns among the variants, round after round."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from .engines import TEXT
from .measure import Run, measure
from .pace import Pace
from .results import Variant
from .scenarios import Scenario
from .targets import Floor, GatewayHost, GatewayTarget, Stock, Target
from .workload import Group, Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to measure, and how often."""

    modes: tuple[str, ...]
    shards: tuple[int, ...]
    rounds: int = 3
    against_sglang: bool = False
    floors: bool = False
    grouped: bool = True
    codec: str = "pickle"
    engine_argv: tuple[str, ...] = ()
    loop: str = "auto"


@dataclass(slots=True)
class Outcome:
    """One scenario's results."""

    scenario: Scenario
    workload: Workload
    variants: list[Variant] = field(default_factory=list)

    def variant(self, name: str) -> Variant | None:
        """The variant of this name."""
        return next((variant for variant in self.variants if variant.name == name), None)


class Bench:
    """A context in which scenarios run; what is slow to start stays up between them."""

    def __init__(self, plan: Plan, *, on_phase: Callable[[str], None]) -> None:
        self._plan = plan
        self._on_phase = on_phase
        self._directory = Path(tempfile.mkdtemp(prefix="sgb-"))
        self._stack = ExitStack()
        self._tokenizer: Any = None
        self._host: GatewayHost | None = None
        self._stock: dict[int, Stock] = {}

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.callback(shutil.rmtree, self._directory, ignore_errors=True)
            self._pace = stack.enter_context(Pace(self._directory / "pace"))
            self._start(stack)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    @property
    def engine_seconds(self) -> float:
        """How long the engine took to start."""
        return self._host.seconds if self._host is not None else 0.0

    def run(self, scenario: Scenario, workload: Workload, on_turn: Callable[[str], None]) -> Outcome:
        """All variants, in turn, as often as the plan says; `on_turn` hears whose it is."""
        outcome = Outcome(scenario, workload)
        self._pace.seconds = workload.step_seconds
        targets = self._targets(scenario)
        outcome.variants = [Variant(target.name, *_kind(target)) for target in targets]
        background = [group.name for group in workload.groups if group.background]
        event = self._event(targets, workload) if scenario.floors and self._plan.floors else ""
        for number in range(1, self._plan.rounds + 1):
            for target, variant in zip(targets, outcome.variants, strict=True):
                on_turn(f"{scenario.name}, round {number} of {self._plan.rounds}: {target.name}")
                if isinstance(target, Floor):
                    target.event = event
                variant.add(self._measure(target, workload), background)
        return outcome

    def _start(self, stack: ExitStack) -> None:
        plan = self._plan
        settings = {
            "engine": "sglang",
            "argv": list(plan.engine_argv),
            "pace": str(self._directory / "pace"),
            "grouped": plan.grouped,
            "codec": plan.codec,
        }
        if plan.modes:
            self._host = GatewayHost(settings, log=self._directory / "host.log")
            stack.callback(self._host.close)
            self._host.start(self._on_phase)
        if plan.against_sglang:
            for workers in plan.shards:
                self._on_phase(f"starting SGLang's own server with {workers} workers")
                stock = Stock(f"sglang-{workers}", settings, workers=workers, log=self._directory / "sglang.log")
                stack.callback(stock.end)
                stock.open()
                self._stock[workers] = stock

    def _targets(self, scenario: Scenario) -> list[Target]:
        plan, targets = self._plan, list[Target]()
        for shards in plan.shards:
            for mode in plan.modes:
                assert self._host is not None
                config = {"mode": mode, "shards": shards, "loop": plan.loop}
                targets.append(GatewayTarget(f"{mode}-{shards}", self._host, config))
            if shards in self._stock:
                targets.append(self._stock[shards])
        if scenario.floors and plan.floors:
            pace = str(self._directory / "pace")
            targets += [
                Floor(f"floor-{writer}", writer, pace=pace, log=self._directory / "floor.log")
                for writer in ("send", "uvloop")
            ]
        return targets

    def _measure(self, target: Target, workload: Workload) -> Run:
        return measure(target, workload, self._prompt, log_dir=self._directory)

    def _prompt(self, tokens: int) -> str:
        if self._tokenizer is None:
            from .engines import engine_argv, model_tokenizer

            self._tokenizer = model_tokenizer(engine_argv(self._plan.engine_argv))
        ids = self._tokenizer.encode(TEXT * (1 + tokens // 16), add_special_tokens=False).ids[:tokens]
        text: str = self._tokenizer.decode(ids)
        return text

    def _event(self, targets: Sequence[Target], workload: Workload) -> str:
        """One event as the first target sends it, for the bare writers to repeat."""
        from .probe import sample_event

        target = targets[0]
        target.open()
        try:
            group = Group(format=workload.groups[0].format, max_tokens=64)
            return sample_event(target.address, group.request(self._prompt(32), target.model, "localhost"))
        finally:
            target.close()


def _kind(target: Target) -> tuple[str, int]:
    name, _, number = target.name.rpartition("-")
    return (name, int(number)) if number.isdigit() else (target.name, 1)
