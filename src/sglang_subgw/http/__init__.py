"""The ASGI application of a shard: SGLang's and OpenAI's routes over one ShardEngine."""
