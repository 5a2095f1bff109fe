"""From a client's request to checked prompts and the fields of the messages that carry them."""
