"""HTTP without an engine: exchanges, bodies, checked fields, events, errors. For shards and engine routes alike."""
