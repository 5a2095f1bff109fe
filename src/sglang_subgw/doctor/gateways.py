"""Running gateways, as their segments tell: nothing is asked of them, so that one that hangs can be looked at."""

from __future__ import annotations

import http.client
import json
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ..config import GatewayConfig
from ..contract import GatewayState, Segment, ShardState, Word, segment_names, stale_segments
from ..errors import ConfigError, ContractError

_ANSWER_SECONDS: Final = 5.0
_STALL_SECONDS: Final = GatewayConfig().stall_seconds


@dataclass(frozen=True, slots=True)
class Shard:
    """One shard, from its slot."""

    index: int
    state: str
    generation: int
    restarts: int
    heartbeat_age: float | None
    """Seconds since its loop last turned; None where it has no life now."""
    requests_now: int
    connections: int
    requests: int
    failed: int
    last_failure: str
    """Why a life of it last ended by itself, "" if none has."""
    problem: str = ""


@dataclass(frozen=True, slots=True)
class RunningGateway:
    """One gateway, or an engine that gateways attach to."""

    pid: int
    segment: str
    state: str
    reason: str
    model: str
    sglang_version: str
    engine_id: str
    shards: tuple[Shard, ...]
    heartbeat_age: float | None = None
    """Seconds since its own thread last turned; None for an engine alone."""

    @property
    def problems(self) -> list[str]:
        """What is wrong with it, in sentences."""
        who = f"gateway {self.pid}"
        found = [f"{who} failed: {self.reason}"] if self.state == GatewayState.FAILED.name.lower() else []
        if self.heartbeat_age is not None and self.heartbeat_age > _STALL_SECONDS:
            found.append(f"{who}: its own thread has not turned for {self.heartbeat_age:.1f} s: nobody is accepted")
        return found + [f"{who}, shard {shard.index}: {shard.problem}" for shard in self.shards if shard.problem]


def gateways(target: str = "") -> list[RunningGateway]:
    """All that this user may look at, or the one meant by a pid, a segment's name or a URL.

    Raises ContractError for a target that isn't there, ConfigError for one that means nothing.
    """
    dead = set(stale_segments())
    names = {name: pid for name, pid in segment_names().items() if name not in dead}
    if not target:
        return [gateway for gateway in map(_readable, names) if gateway is not None]
    if target.isdigit():
        chosen = _owned_by({int(target)}, names)
    elif "://" in target:
        chosen = _owned_by(_pids_behind(target), names)
    elif target in names:
        chosen = [target]
    elif target.startswith("sglang_subgw_"):
        chosen = []
    else:
        raise ConfigError(f"{target!r} is no pid, no segment's name and no URL.", hint="For instance doctor 4711.")
    if not chosen:
        raise ContractError(f"No gateway of {target} is running here.")
    return [describe(name) for name in chosen]


def describe(name: str) -> RunningGateway:
    """What the segment says now."""
    with Segment.attach(name) as segment:
        contract = segment.contract()
        return RunningGateway(
            pid=segment.owner_pid,
            segment=name,
            state=segment.state.name.lower(),
            reason=segment.reason,
            model=contract.model.served_model_name,
            sglang_version=contract.sglang_version,
            engine_id=contract.engine_id,
            heartbeat_age=segment.heartbeat_age,
            shards=tuple(
                _shard(index, slot.snapshot())
                for index, slot in enumerate(segment.slots)
                if slot.state is not ShardState.EMPTY
            ),
        )


def _readable(name: str) -> RunningGateway | None:
    try:
        return describe(name)
    except ContractError:
        # Another user's, another version's, or gone just now.
        return None


def _shard(index: int, slot: dict[str, int | str]) -> Shard:
    def word(name: Word) -> int:
        return int(slot[name.name.lower()])

    state, beat = str(slot["state"]), word(Word.HEARTBEAT_NS)
    lives = state in {s.name.lower() for s in (ShardState.STARTING, ShardState.READY, ShardState.DRAINING)}
    age = max(0.0, (time.monotonic_ns() - beat) / 1e9) if lives and beat else None
    problem = ""
    if state == ShardState.FAILED.name.lower():
        problem = "it failed and is not up again" + (f": {slot['last_failure']}" if slot["last_failure"] else "")
    elif state != ShardState.STARTING.name.lower() and age is not None and age > _STALL_SECONDS:
        problem = f"its event loop has not turned for {age:.1f} s"
    return Shard(
        index=index,
        state=state,
        generation=word(Word.GENERATION),
        restarts=max(0, word(Word.GENERATION) - 1),
        heartbeat_age=age,
        requests_now=word(Word.HTTP_REQUESTS),
        connections=word(Word.CONNECTIONS),
        requests=word(Word.REQUESTS),
        failed=word(Word.FAILED),
        last_failure=str(slot["last_failure"]),
        problem=problem,
    )


def _owned_by(pids: set[int], names: dict[str, int]) -> list[str]:
    return [name for name, pid in names.items() if pid in pids]


def _pids_behind(url: str) -> set[int]:
    """The process that answers at the URL, and its parent: a shard may be a child of the gateway's."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"{url.rstrip('/')}/server_info", timeout=_ANSWER_SECONDS) as answer:
            pid = int(json.load(answer)["sglang_subgw"]["pid"])
    except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError) as exc:
        reason = exc.reason if isinstance(exc, urllib.error.URLError) else exc
        raise ContractError(
            f"{url} does not answer as a gateway does: {reason}.", hint="Give its pid, which needs no answer."
        ) from None
    try:
        parent = int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[1])
    except OSError:
        raise ContractError(f"The gateway at {url} runs on another machine, as process {pid}.") from None
    return {pid, parent}
