"""For servers of one's own: the engine from any process, thread or interpreter, and gateways in one's own process."""
