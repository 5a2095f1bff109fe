"""ZMTP spoken on the shard's own event loop."""
