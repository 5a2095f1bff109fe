"""Where a shard runs."""
