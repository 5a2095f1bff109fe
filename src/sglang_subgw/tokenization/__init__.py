"""Text to token ids and back: in the shard, or in the engine's process over a private socket."""
