"""What a shard may send: the type of every field, checked before it is encoded."""
