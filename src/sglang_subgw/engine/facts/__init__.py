"""What the contract says of the engine, read from the installed SGLang: never hard-coded, never out of date."""
