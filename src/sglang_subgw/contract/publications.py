"""What an engine publishes beside its answers, and where: load snapshots and KV cache events."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Self

type FieldList = tuple[tuple[str, Any], ...]
"""A message's fields in wire order, each with its default, or REQUIRED."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadFacts:
    """The file in which every data-parallel rank keeps its latest load snapshot, msgpack in a slot of its own."""

    path: str
    magic: str
    version: int
    header: str
    """struct format of the file's beginning: magic, version, ranks, bytes per slot."""
    slot_header: str
    """struct format of a slot's beginning: bytes of the snapshot that follows, 0 without one."""
    fields: FieldList
    """Of a snapshot, in the order in which they are told."""
    sections: dict[str, FieldList]
    """Of those fields that are records themselves: their fields, in wire order."""
    includes: dict[str, str]
    """The name by which such a section is asked for."""
    accelerator: str | None = None
    accelerators_per_rank: int = 1

    @classmethod
    def from_plain(cls, raw: dict[str, Any]) -> Self:
        """From JSON."""
        sections = {name: field_list(rows) for name, rows in raw["sections"].items()}
        return cls(**{**raw, "fields": field_list(raw["fields"]), "sections": sections})


@dataclass(frozen=True, slots=True, kw_only=True)
class KvEventSource:
    """One rank's publisher of KV cache events."""

    dp_rank: int
    endpoint: str
    """zmq endpoint that it binds (PUB), as this machine reaches it."""
    topic: str = ""
    replay_endpoint: str = ""
    """zmq endpoint (ROUTER) at which past batches can be had, "" without one."""
    block_size: int = 0
    """Tokens per block, 0 if that isn't known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KvEventFacts:
    """Who publishes KV cache events, and where the engine's side passes them on."""

    socket: str = ""
    """zmq endpoint (XPUB) of the engine's side, "" when nothing is published."""
    sources: tuple[KvEventSource, ...] = ()
    events: dict[str, FieldList] = field(default_factory=dict)
    """Field lists of the kinds of events."""
    unavailable: str = ""
    """Why there are no sources, for whoever asks for events."""

    @classmethod
    def from_plain(cls, raw: dict[str, Any]) -> Self:
        """From JSON."""
        sources = tuple(KvEventSource(**source) for source in raw["sources"])
        events = {name: field_list(rows) for name, rows in raw["events"].items()}
        return cls(**{**raw, "sources": sources, "events": events})


def field_list(rows: list[Any]) -> FieldList:
    """From JSON."""
    return tuple((name, default) for name, default in rows)
