"""Where a shard runs: each mode the same small interface, nothing else of the gateway knows which it is."""

from __future__ import annotations

from ..config import Mode
from ..shard.spec import ShardSpec
from .base import ShardHost

__all__ = ["ShardHost", "make_host"]


def make_host(spec: ShardSpec, *, scratch_dir: str) -> ShardHost:
    """A place for the shard, not started yet; raises ModeUnavailable when the mode can't run here."""
    if spec.config.mode is Mode.PROCESS:
        from .process import ProcessHost

        return ProcessHost(spec)
    # Not imported before it is needed: on 3.13 it depends on a package that process mode does without.
    from .subinterp import SubinterpHost

    return SubinterpHost(spec, scratch_dir=scratch_dir)
