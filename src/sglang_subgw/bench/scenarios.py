"""The named workloads: each shows one thing, and can be repeated by its name."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from ..errors import ConfigError
from .load.workload import Group, Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """Workloads with a name, what they are put on unless told otherwise, and what to look at."""

    name: str
    about: str
    cases: Mapping[str, Workload]
    """Workloads to compare; a single one is called ""."""
    per: str = "event"
    """What processor time is divided by: event, request or token, of which an event may carry several."""
    base: str = ""
    """The case that the others are compared with."""
    compared: tuple[str, ...] = ()
    """Metrics that are compared with it; the cost if none is named."""
    modes: tuple[str, ...] = ("subinterp", "process")
    shards: tuple[int, ...] = (1,)
    floors: bool = False
    """Whether bare writers can do the same: streams that go on, and nothing else."""
    engine: str = ""
    """The only engine that it makes sense on; "" for the plan's."""
    ungrouped: tuple[str, ...] = ()
    """Cases that get one message per token from the engine, as from SGLang to 0.5.22."""
    scaling: bool = False
    """Whether throughput over the number of shards is what to look at."""

    def changed(self, **workload: Any) -> Scenario:
        """The same with other values in each workload; those of groups in the first group, the measured one."""
        cases = {}
        for name, case in self.cases.items():
            of_group = {key: value for key, value in workload.items() if key in _GROUP_FIELDS}
            of_case = {key: value for key, value in workload.items() if key not in _GROUP_FIELDS}
            first, *others = case.groups
            cases[name] = dataclasses.replace(case, groups=(dataclasses.replace(first, **of_group), *others), **of_case)
        return dataclasses.replace(self, cases=cases)

    def bounded(self, tokens: int) -> Scenario:
        """The same with no answer of more tokens, for models whose context has an end: streams then start anew."""
        cases = {}
        for name, case in self.cases.items():
            groups = (dataclasses.replace(group, max_tokens=min(group.max_tokens, tokens)) for group in case.groups)
            cases[name] = dataclasses.replace(case, groups=tuple(groups))
        return dataclasses.replace(self, cases=cases)


_GROUP_FIELDS: Final = {field.name for field in dataclasses.fields(Group)}
_PROBE: Final = Group(name="probe", connections=1, format="probe", stream=False, pause_seconds=0.02, background=True)
_LOOK_SECONDS: Final = 0.1
"""Of clients that are to cost little: woken by each event, they would need as much of the cores as a shard."""


def _streams(count: int, rate: float, *others: Group, seconds: float = 5.0, **group: Any) -> Workload:
    groups = (Group(connections=count, **group), *others)
    return Workload(groups=groups, step_seconds=1 / rate, seconds=seconds)


def _short(format: str, prompt_tokens: int, **group: Any) -> Workload:
    group = {"connections": 16, "stream": False, "max_tokens": 8, **group}
    requests = Group(name="requests", format=format, prompt_tokens=prompt_tokens, **group)
    return Workload(groups=(requests,), step_seconds=0.002)


def _prompts(**group: Any) -> Group:
    return Group(
        name="prompts",
        format="generate",
        stream=False,
        max_tokens=4,
        pause_seconds=0.5,
        background=True,
        **group,
    )


_QUICK: Final = Group(name="quick", connections=1000, look_seconds=_LOOK_SECONDS, background=True)
_SLOW: Final = Group(name="slow", connections=1000, bytes_per_second=100, background=True)

_ALL: Final = (
    Scenario(
        name="chat-64",
        about="64 chat streams at 50 tokens/s each: what an event costs, beside a bare write",
        cases={"": _streams(64, 50)},
        floors=True,
    ),
    Scenario(
        name="chat-64-fast",
        about="64 chat streams at 250 tokens/s each: the same at five times the rate",
        cases={"": _streams(64, 250)},
        floors=True,
    ),
    Scenario(
        name="chat-256",
        about="256 chat streams at 25 tokens/s each",
        cases={"": _streams(256, 25)},
        floors=True,
    ),
    Scenario(
        name="chat-256-shards",
        about="256 chat streams at 25 tokens/s each over 1, 2 and 4 shards: what splitting a load costs, and balance",
        cases={"": _streams(256, 25)},
        shards=(1, 2, 4),
    ),
    Scenario(
        name="chat-64-ungrouped",
        about="64 chat streams at 50 tokens/s each, one message per token, as SGLang to 0.5.22 sends them",
        cases={"": _streams(64, 50)},
        ungrouped=("",),
    ),
    Scenario(
        name="completions-64",
        about="64 streams of /v1/completions at 50 tokens/s each",
        cases={"": _streams(64, 50, format="completions")},
        floors=True,
    ),
    Scenario(
        name="generate-128",
        about="64 streams of /generate, 128 tokens each, every event with the whole text so far",
        cases={"": _streams(64, 50, format="generate", max_tokens=128)},
    ),
    Scenario(
        name="generate-lengths",
        about="how the cost of an event of /generate grows with what was said before it",
        cases={f"{tokens} tokens": _streams(64, 50, format="generate", max_tokens=tokens) for tokens in (32, 128, 512)},
        base="32 tokens",
    ),
    Scenario(
        name="short",
        about="short requests, not streamed, 8 tokens out: what a request costs by format and prompt length",
        cases={
            f"{format} {tokens}": _short(format, tokens) for format in ("generate", "chat") for tokens in (32, 1000)
        },
        per="request",
        base="generate 32",
    ),
    Scenario(
        name="prompt-lengths",
        about="/generate with prompts of 32 to 10,000 tokens: how the cost of a request grows",
        cases={f"{tokens} tokens": _short("generate", tokens) for tokens in (32, 320, 3200, 10_000)},
        per="request",
        base="32 tokens",
    ),
    Scenario(
        name="reconnect",
        about="short requests, with a new connection for each and without",
        cases={"kept": _short("generate", 32), "new": _short("generate", 32, reconnect=True)},
        per="request",
        base="kept",
    ),
    Scenario(
        name="mixed",
        about="chat streams beside short requests of all formats",
        cases={
            "": _streams(
                64,
                50,
                Group(name="chat", stream=False, connections=4, max_tokens=16, pause_seconds=0.1, background=True),
                Group(
                    name="generate",
                    format="generate",
                    stream=False,
                    connections=4,
                    max_tokens=16,
                    prompt_tokens=1000,
                    pause_seconds=0.1,
                    background=True,
                ),
                Group(
                    name="completions",
                    format="completions",
                    connections=4,
                    max_tokens=32,
                    reconnect=True,
                    pause_seconds=0.1,
                    background=True,
                ),
                _PROBE,
                max_tokens=256,
            )
        },
    ),
    Scenario(
        name="saturate",
        about="as many events as go through, from a wire engine that costs next to nothing: throughput by shards",
        cases={
            name: Workload(groups=(Group(connections=128, look_seconds=_LOOK_SECONDS),), step_seconds=0.0)
            for name in ("ungrouped", "grouped")
        },
        modes=("subinterp", "process", "thread"),
        shards=(1, 2),
        engine="wire",
        ungrouped=("ungrouped",),
        per="token",
        scaling=True,
    ),
    Scenario(
        name="saturate-sglang",
        about="as many events as go through SGLang's router and detokenizer",
        cases={"": Workload(groups=(Group(connections=128, max_tokens=256),), step_seconds=0.0)},
        shards=(1, 2),
        per="token",
        scaling=True,
    ),
    Scenario(
        name="long-prompt",
        about="64 chat streams alone, beside prompts of 4 MB, and beside 32 prompts of 100,000 tokens at once",
        cases={
            "alone": _streams(64, 50, _PROBE, seconds=10),
            "4 MB": _streams(64, 50, _PROBE, _prompts(connections=1, prompt_bytes=4_000_000), seconds=10),
            "32 x 100k": _streams(64, 50, _PROBE, _prompts(connections=32, prompt_tokens=100_000), seconds=10),
        },
        base="alone",
        compared=("gap p99",),
    ),
    Scenario(
        name="many-streams",
        about="2,000 streams over 4 shards, beside 200 with as many events a second; memory per stream",
        cases={
            "200": _streams(200, 10, _PROBE, seconds=10, format="generate"),
            "2,000": _streams(2000, 10, _PROBE, seconds=10, format="generate", tokens_per_event=10),
            "2,000 at once": _streams(2000, 1, _PROBE, seconds=10, format="generate"),
        },
        base="200",
        compared=("late p99",),
        shards=(4,),
    ),
    Scenario(
        name="slow-readers",
        about="64 chat streams alone, beside 1,000 clients that read all, and beside 1,000 that read 100 bytes/s",
        cases={
            "alone": _streams(64, 20, seconds=10),
            "quick ones": _streams(64, 20, _QUICK, seconds=10),
            "slow ones": _streams(64, 20, _SLOW, seconds=10),
        },
        base="quick ones",
        compared=("gap p99",),
    ),
)
SCENARIOS: Final = {scenario.name: scenario for scenario in _ALL}


def scenario(name: str) -> Scenario:
    """The scenario of this name; raises ConfigError with those that there are."""
    if name not in SCENARIOS:
        raise ConfigError(f"There is no scenario {name!r}.", hint=f"There are {', '.join(SCENARIOS)}.")
    return SCENARIOS[name]
