"""What the simulated engine publishes beside its answers."""
