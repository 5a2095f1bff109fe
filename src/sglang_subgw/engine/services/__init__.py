"""What the engine's process does for its shards."""
