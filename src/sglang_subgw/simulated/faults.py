"""What can go wrong on purpose."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True, kw_only=True)
class Faults:
    """Faults that a running engine looks at before each step and each message; change them at any time."""

    drop_outputs: int = 0
    """Lose that many of the next output messages."""
    delay_seconds: float = 0.0
    """Hold back every step by this long."""
    crash_after_steps: int | None = None
    """End as a crashed engine after that many further steps."""
    router_silent: bool = False
    """The router reads nothing any more, and looks alive."""
    stall: bool = False
    """The scheduler takes requests and never steps."""
