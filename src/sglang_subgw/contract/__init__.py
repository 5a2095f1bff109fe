"""The shared-memory contract between an engine and its shards: what is in it, publish, attach."""

from .facts import REQUIRED, EngineContract, FeatureFacts, FieldList, ModelFacts, WireFacts
from .segment import GatewayState, Segment, process_start_time, segment_names, stale_segments, sweep_stale
from .slots import SLOT_BYTES, ShardState, Slot, Word

__all__ = [
    "REQUIRED",
    "SLOT_BYTES",
    "EngineContract",
    "FeatureFacts",
    "FieldList",
    "GatewayState",
    "ModelFacts",
    "Segment",
    "ShardState",
    "Slot",
    "WireFacts",
    "Word",
    "process_start_time",
    "segment_names",
    "stale_segments",
    "sweep_stale",
]
