"""Scores: which prompts they take, and what is made of the engine's answers."""
