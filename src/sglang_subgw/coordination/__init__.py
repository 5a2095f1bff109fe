"""What all workers of one engine agree on: paused, held, weights, adapters, released memory, bootstrap rooms."""
