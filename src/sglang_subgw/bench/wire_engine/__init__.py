"""An engine without sglang that feeds shards as fast as the wire allows."""
