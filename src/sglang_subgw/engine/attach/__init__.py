"""What gateways need of an engine, their own process's or another's: its segment, a seat at it, a fence. No sglang."""
