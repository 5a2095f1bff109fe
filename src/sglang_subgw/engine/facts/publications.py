"""What the installed SGLang publishes beside its answers, and where: read from its own modules, never hard-coded."""

from __future__ import annotations

import typing
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec

from ...contract import KvEventFacts, KvEventSource, LoadFacts
from ...kv_events.frames import SOCKET_NAME
from .schema import field_list


def load_facts(engine: Any) -> LoadFacts | None:
    """Where the engine's schedulers keep their load snapshots; None for an SGLang that keeps none."""
    try:
        from sglang.srt.entrypoints import v1_loads
        from sglang.srt.managers import load_snapshot
    except ImportError:
        return None
    snapshot = load_snapshot.LoadSnapshot
    sections = _sections(snapshot)
    names = snapshot.VALID_SECTIONS - {"all", "core"}
    return LoadFacts(
        path=load_snapshot.shm_path_for(engine.port_args.instance_id),
        magic=load_snapshot.MAGIC.decode("latin-1"),
        version=load_snapshot.VERSION,
        header=load_snapshot.HEADER_STRUCT.format,
        slot_header=load_snapshot.SLOT_LEN_STRUCT.format,
        fields=field_list(snapshot),
        sections={name: field_list(section) for name, section in sections.items()},
        # A section is asked for by the beginning of its name.
        includes={field: next(name for name in names if field.startswith(name)) for field in sections},
        accelerator=v1_loads._accelerator_name(),
        accelerators_per_rank=v1_loads._num_accelerators_per_dp_rank(),
    )


def kv_event_facts(
    args: Mapping[str, Any], scheduler_info: Mapping[str, Any], ranks: int, runtime_dir: Path
) -> KvEventFacts:
    """Who publishes KV cache events on this machine, or why nobody does whom one could hear."""
    raw = args.get("kv_events_config")
    if not raw:
        return KvEventFacts(unavailable="it was started without --kv-events-config")
    from sglang.srt.disaggregation import kv_events

    config = kv_events.KVEventsConfig.from_cli(raw)
    if config.publisher != "zmq":
        return KvEventFacts(unavailable=f"its publisher is {config.publisher!r}, not 'zmq'")
    sources = [_reported(source) for source in scheduler_info.get("kv_event_sources") or ()]
    if not sources:
        if problem := _unreachable(config):
            return KvEventFacts(unavailable=problem)
        described = args.get("kv_events") or {}
        block_size = described.get("block_size") or (args.get("page_size") or 0) * (args.get("dcp_size") or 1)
        local = max(1, ranks // max(1, args.get("nnodes") or 1))
        sources = [_configured(kv_events, config, rank, block_size) for rank in range(local)]
    return KvEventFacts(
        socket=f"ipc://{runtime_dir / SOCKET_NAME}",
        sources=tuple(sources),
        events={cls.__name__: field_list(cls) for cls in kv_events.KVCacheEvent.__subclasses__()},
    )


def _sections(snapshot: type[msgspec.Struct]) -> dict[str, type[msgspec.Struct]]:
    """The fields of a snapshot that are structs themselves."""
    found = {}
    for field in msgspec.structs.fields(snapshot):
        for kind in typing.get_args(field.type):
            if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
                found[field.name] = kind
    return found


def _reported(source: Mapping[str, Any]) -> KvEventSource:
    """As a scheduler itself tells where it publishes."""
    return KvEventSource(
        dp_rank=source["dp_rank"],
        endpoint=source["endpoint"],
        topic=source["topic"],
        replay_endpoint=source.get("replay_endpoint") or "",
        block_size=source["block_size"],
    )


def _configured(kv_events: ModuleType, config: Any, rank: int, block_size: int) -> KvEventSource:
    offset = kv_events.ZmqEventPublisher.offset_endpoint_port
    replay = offset(config.replay_endpoint, rank)
    return KvEventSource(
        dp_rank=rank,
        endpoint=_local(offset(config.endpoint, rank)),
        topic=config.topic,
        replay_endpoint=_local(replay) if replay else "",
        block_size=block_size,
    )


def _unreachable(config: Any) -> str:
    """Why nobody can subscribe to what is published, "" if one can."""
    endpoint: str = config.endpoint
    if endpoint.startswith("inproc://"):
        return f"it publishes within its own process only ({endpoint})"
    binds = config.bind
    if binds is None:
        binds = endpoint.startswith("ipc://") or any(host in endpoint for host in ("*", "::", "0.0.0.0"))
    if not binds:
        return f'it connects to {endpoint} to publish; with "bind": true in --kv-events-config it can be subscribed to'
    if endpoint.endswith((":0", ":*")):
        return f"it publishes at a port that the system chose ({endpoint}); give it one in --kv-events-config"
    return ""


def _local(endpoint: str) -> str:
    """A bound endpoint, as a process of the same machine connects to it."""
    for wildcard, loopback in (("tcp://*:", "tcp://127.0.0.1:"), ("tcp://0.0.0.0:", "tcp://127.0.0.1:")):
        if endpoint.startswith(wildcard):
            return loopback + endpoint.removeprefix(wildcard)
    for wildcard in ("tcp://[::]:", "tcp://:::"):
        if endpoint.startswith(wildcard):
            return "tcp://[::1]:" + endpoint.removeprefix(wildcard)
    if endpoint.startswith("ipc://") and not endpoint.startswith("ipc://@"):
        return f"ipc://{Path(endpoint.removeprefix('ipc://')).absolute()}"
    return endpoint
