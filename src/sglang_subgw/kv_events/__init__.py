"""What the engine's KV caches hold, from the schedulers to any number of readers: in order, every loss marked."""
