"""A real engine on any machine: a built-in model and a CPU platform for SGLang."""
