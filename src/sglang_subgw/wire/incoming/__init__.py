"""Reading what the engine sends: nothing is imported for it, and only known types are made."""
