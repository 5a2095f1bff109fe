"""Which engines of this user can be attached to: found by their owners' pids or their segments' names."""

from __future__ import annotations

from ...contract import GatewayState, Segment, segment_names
from ...errors import ContractError


def open_segment(target: str) -> Segment:
    """The segment of a running engine, by its owner's pid or its own name; raises ContractError with the reason."""
    names = segment_names()
    found = [name for name, pid in names.items() if target in (name, str(pid))]
    if not found:
        raise ContractError(f"{target!r} is neither the pid nor the segment of a running engine.", hint=_choice())
    problems, engines = [], {}
    for name in found:
        try:
            with Segment.attach(name) as segment:
                if problem := _problem(segment):
                    problems.append(problem)
                else:
                    # Two gateways of one process may be on the same engine.
                    engines[segment.contract().engine_id] = name
        except ContractError as exc:
            problems.append(str(exc))
    if not engines:
        raise ContractError(" ".join(problems), hint=_choice())
    if len(engines) > 1:
        choice = ", ".join(engines.values())
        raise ContractError(f"Process {target} has several engines.", hint=f"Give the name of one: {choice}.")
    return Segment.attach(engines.popitem()[1])


def listing() -> list[str]:
    """Each engine that can be attached to now, in words: its owner's pid, its segment's name, its model."""
    lines = []
    for name in segment_names():
        try:
            with Segment.attach(name) as segment:
                if not _problem(segment):
                    model = segment.contract().model.served_model_name
                    lines.append(f"{segment.owner_pid} ({name}), {model}")
        except ContractError:
            # Another user's, or gone since it was listed.
            continue
    return lines


def _problem(segment: Segment) -> str:
    """Why it can't be attached to, "" if it can."""
    if not segment.owner_lives:
        return f"The process {segment.owner_pid} that published {segment.name} has ended."
    match segment.state:
        case GatewayState.FAILED:
            return f"The engine of process {segment.owner_pid} has failed: {segment.reason}"
        case GatewayState.DRAINING:
            return f"The engine of process {segment.owner_pid} is stopping."
    if owner := segment.contract().attached_to:
        return (
            f"Process {segment.owner_pid} has no engine: it is a gateway attached to {owner}. Attach to that one, too."
        )
    return ""


def _choice() -> str:
    lines = listing()
    if not lines:
        return "No engine that can be attached to runs here; --engine-only starts one."
    return f"These can be attached to: {'; '.join(lines)}."
