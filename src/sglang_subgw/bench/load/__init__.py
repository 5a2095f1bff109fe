"""The load: groups of clients, their prompts, and their times."""
