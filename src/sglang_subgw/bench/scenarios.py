"""The named workloads: each shows one thing, and can be repeated by its name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ..errors import ConfigError
from .workload import Group, Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A workload with a name, what it is put on unless told otherwise, and what to look at."""

    name: str
    about: str
    workload: Workload
    per: str = "event"
    """What processor time is divided by: event or request."""
    modes: tuple[str, ...] = ("subinterp", "process")
    shards: tuple[int, ...] = (1,)
    floors: bool = False
    """Whether bare writers can do the same: streams that go on, and nothing else."""
    grouped: bool = True


def _streams(count: int, rate: float, **group: object) -> Workload:
    return Workload(groups=(Group(connections=count, **group),), step_seconds=1 / rate)  # type: ignore[arg-type]


SCENARIOS: Final = {
    scenario.name: scenario
    for scenario in (
        Scenario(
            name="chat-64",
            about="64 chat streams at 50 tokens/s each: what an event costs",
            workload=_streams(64, 50),
            floors=True,
        ),
        Scenario(
            name="chat-256",
            about="256 chat streams at 25 tokens/s each",
            workload=_streams(256, 25),
            floors=True,
        ),
        Scenario(
            name="generate-128",
            about="64 streams of /generate, 128 tokens each, every event with the whole text so far",
            workload=_streams(64, 50, format="generate", max_tokens=128),
        ),
        Scenario(
            name="short",
            about="/generate, not streamed, 32 tokens in and 8 out: what a request costs",
            workload=Workload(
                groups=(Group(connections=16, format="generate", stream=False, max_tokens=8),), step_seconds=0.002
            ),
            per="request",
        ),
    )
}


def scenario(name: str) -> Scenario:
    """The scenario of this name; raises ConfigError with those that there are."""
    if name not in SCENARIOS:
        raise ConfigError(f"There is no scenario {name!r}.", hint=f"There are {', '.join(SCENARIOS)}.")
    return SCENARIOS[name]
