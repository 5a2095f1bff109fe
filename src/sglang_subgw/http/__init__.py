"""The ASGI application of a shard."""
