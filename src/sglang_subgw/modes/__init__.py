"""Where a shard runs: each mode the same small interface, nothing else of the gateway knows which it is."""

from __future__ import annotations

from ..config import Mode
from ..errors import ModeUnavailable
from ..shard.spec import ShardSpec
from .base import ShardHost
from .process import ProcessHost
from .thread import ThreadHost

__all__ = ["ShardHost", "make_host"]


def make_host(spec: ShardSpec, *, scratch_dir: str) -> ShardHost:
    """A place for the shard, not started yet; raises ModeUnavailable when the mode can't run here."""
    match spec.config.mode:
        case Mode.PROCESS:
            return ProcessHost(spec)
        case Mode.THREAD:
            return ThreadHost(spec)
        case Mode.SUBINTERP:
            # Not imported before it is needed: on 3.13 it depends on a package that other modes do without.
            from .subinterp import SubinterpHost

            return SubinterpHost(spec, scratch_dir=scratch_dir)
        case mode:
            raise ModeUnavailable(f"Mode {mode} must be chosen before a shard starts.")
