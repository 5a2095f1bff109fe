"""What every mode offers to the supervisor: a place for one life of one shard."""

from __future__ import annotations

from typing import Protocol

from ..system.channel import Channel


class ShardHost(Protocol):
    """Where one shard runs, from `start` to `join`; used from one thread."""

    channel: Channel
    """The gateway's end: it is at its end as soon as the shard's place is gone, however that came."""

    def start(self) -> None:
        """Begin to start the shard; returns at once."""

    def join(self, timeout: float) -> bool:
        """Wait for its end and free what it held; False when it still runs after `timeout` seconds."""

    def kill(self) -> bool:
        """End it by force; False where the mode has no such force."""

    @property
    def pid(self) -> int:
        """The process it runs in."""

    @property
    def exit_reason(self) -> str:
        """Why it ended, "" for a clean end; valid after `join` returned True."""
