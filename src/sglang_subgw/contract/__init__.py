"""The shared-memory contract between an engine and its shards: what is in it, publish, attach."""

from .facts import REQUIRED, EngineContract, FeatureFacts, ModelFacts, WireFacts
from .publications import FieldList, KvEventFacts, KvEventSource, LoadFacts, field_list
from .segment import GatewayState, Segment, process_start_time, segment_names, stale_segments, sweep_stale
from .slots import SLOT_BYTES, ShardState, Slot, Word

__all__ = [
    "REQUIRED",
    "SLOT_BYTES",
    "EngineContract",
    "FeatureFacts",
    "FieldList",
    "GatewayState",
    "KvEventFacts",
    "KvEventSource",
    "LoadFacts",
    "ModelFacts",
    "Segment",
    "ShardState",
    "Slot",
    "WireFacts",
    "Word",
    "field_list",
    "process_start_time",
    "segment_names",
    "stale_segments",
    "sweep_stale",
]
