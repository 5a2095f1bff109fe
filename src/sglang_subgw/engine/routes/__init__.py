"""The admin listener: further methods of the engine, for its operator alone."""
