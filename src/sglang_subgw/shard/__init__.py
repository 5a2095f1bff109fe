"""What runs in a shard."""
