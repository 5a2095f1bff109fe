"""OpenAI's API as SGLang serves it: completions, chat completions, models."""
