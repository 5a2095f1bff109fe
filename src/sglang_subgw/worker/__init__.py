"""The TokenizerWorker: requests to the engine, outputs back to whoever asked. No HTTP, no mode, no sglang."""
