"""Shards SGLang's gateway inside the engine's process."""
