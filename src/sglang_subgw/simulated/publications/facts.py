"""What a simulated engine publishes beside its answers, and where: SGLang's forms, read once from it and kept here."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, Final

from ...contract import KvEventFacts, KvEventSource, LoadFacts, field_list
from ...kv_events.frames import SOCKET_NAME
from ..wire.schema import VERSION

BLOCK_SIZE: Final = 16
"""Tokens per block of the KV cache."""


def load_facts(path: Path) -> LoadFacts:
    """Load snapshots in a file at `path`."""
    return LoadFacts.from_plain({**_forms()["loads"], "path": str(path)})


def kv_event_facts(runtime_dir: Path, ranks: int, config: Mapping[str, Any] | None) -> KvEventFacts:
    """KV cache events of each rank at sockets in the runtime directory; `config` is SGLang's kv_events_config.

    Of it, `topic` and `buffer_steps` are kept to, and whether there is a `replay_endpoint`.
    """
    if config is None:
        return KvEventFacts(unavailable="it was started without --kv-events-config")
    sources = [
        KvEventSource(
            dp_rank=rank,
            endpoint=f"ipc://{runtime_dir}/kv-{rank}",
            topic=config.get("topic", ""),
            replay_endpoint=f"ipc://{runtime_dir}/kv-replay-{rank}" if config.get("replay_endpoint") else "",
            block_size=BLOCK_SIZE,
        )
        for rank in range(ranks)
    ]
    return KvEventFacts(
        socket=f"ipc://{runtime_dir / SOCKET_NAME}",
        sources=tuple(sources),
        events={name: field_list(rows) for name, rows in _forms()["kv_events"].items()},
    )


@cache
def _forms() -> dict[str, Any]:
    text = resources.files(__package__).joinpath(f"publishing-{VERSION}.json").read_text("utf-8")
    forms: dict[str, Any] = json.loads(text)
    return forms
