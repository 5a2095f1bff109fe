"""What is changed about SGLang in its own processes: each file one thing."""
