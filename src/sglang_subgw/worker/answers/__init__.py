"""From the engine's outputs to answers: text, logprobs, `meta_info`."""
