"""SGLang's own code with nothing behind it, to compare with."""
